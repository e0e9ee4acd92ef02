"""The two doors of the client: `connect` for asyncio, `connect_sync` for everybody else."""

from __future__ import annotations

from icestream import limits
from icestream.client.address import DEFAULT, parse_address
from icestream.client.blocking import BlockingClient
from icestream.client.client import Client
from icestream.client.options import ClientOptions
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness


def connect(
    address: str = DEFAULT,
    *,
    name: str = "",
    wait: float = 0.0,
    connect_timeout: float = limits.CLIENT_CONNECT_SECONDS_DEFAULT,
    call_timeout: float = limits.CLIENT_CALL_SECONDS_DEFAULT,
    send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT,
    heartbeat: float = limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT,
    compression: bool = False,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Client:
    """`async with icestream.connect() as client:` connects to a broker, and again whenever the connection is lost.

    `address`: `icestream://host:port`, `host:port` or `unix:///path`. `name`: for the broker's logs. `wait`: seconds to
    go on trying when there is no broker yet. `connect_timeout`: seconds for one connection to open. `call_timeout`: for
    the answer to a call. `send_timeout`: how long a message is tried to be stored. `heartbeat`: seconds of silence
    after which the broker is asked for a sign of life. `compression`: of what is sent, where the broker offers it.
    `clock` and `randomness` are for tests. Raises ConnectionLost, or WrongPort where something else answers.
    """
    options = ClientOptions(name, wait, connect_timeout, call_timeout, send_timeout, heartbeat, compression)
    return Client(parse_address(address), options, clock or SystemClock(), randomness or SystemRandomness())


def connect_sync(
    address: str = DEFAULT,
    *,
    name: str = "",
    wait: float = 0.0,
    connect_timeout: float = limits.CLIENT_CONNECT_SECONDS_DEFAULT,
    call_timeout: float = limits.CLIENT_CALL_SECONDS_DEFAULT,
    send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT,
    heartbeat: float = limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT,
    compression: bool = False,
) -> BlockingClient:
    """`with icestream.connect_sync() as client:` is the same with calls that block. Any thread may use it.

    Without `with` it connects with its first call: `client = icestream.connect_sync()`, and `client.close()` at the
    end. What is still open when the interpreter exits is closed then.
    """
    options = ClientOptions(name, wait, connect_timeout, call_timeout, send_timeout, heartbeat, compression)
    return BlockingClient(parse_address(address), options)
