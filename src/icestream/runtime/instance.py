"""The instance id: by which the processes of one broker recognise each other (docs/adr/0044).

A broker creates an id of 128 random bits, as 32 hexadecimal digits, at each start. It sends it in the WELCOME of the
native protocol and in the header `Icestream-Instance` of every HTTP answer. The lake process and the pipeline answer
with the id of the broker that they are connected to over its local socket; before the first connection they have none.

A request to a lake process may carry the header, too: it is meant for that broker alone, and the lake process of
another broker refuses it (421) before anything is changed.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.runtime.randomness import Randomness

HEADER: Final = "Icestream-Instance"
# Identifies requests of this node's own processes to its lake process. Not in Authorization, which carries the tokens
# of the catalog.
NODE_TOKEN_HEADER: Final = "X-Icestream-Node"
ID_CHARACTERS: Final = 32


def new_instance(randomness: Randomness) -> str:
    return randomness.token(ID_CHARACTERS // 2).hex()


def foreign_broker(expected: str, instance: str | None, where: str) -> errors.ForeignBroker:
    """The error for an answer of another broker.

    `where`: the address that answered, such as `127.0.0.1:8181`. `instance`: its instance id, None if it sent none.
    """
    responder = f"another broker (instance {instance})" if instance else "a process that does not belong to this broker"
    return errors.ForeignBroker(
        f"{where} is answered by {responder}, not by the broker of instance {expected}",
        hint="two brokers on one machine need ports of their own: stop the other one, or give this one another port "
        "(ports.lake, ports.broker_http, …; 0 takes any that is free)",
    )


def check_instance(expected: str, instance: str | None, where: str) -> None:
    """Raises ForeignBroker unless the answer came from the expected instance.

    `expected` is empty for a broker of an older version, which does not send it; then nothing is compared.
    """
    if expected and instance != expected:
        raise foreign_broker(expected, instance, where)
