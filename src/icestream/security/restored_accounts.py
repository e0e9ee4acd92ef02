"""Which accounts, roles and grants of a backup come back into a cluster, and how (hazard 119, ADR 78). Pure.

    what exists today wins   an account or role that the cluster has stays as it is; a principal that has an account or
                             any grant gets none from the backup: what was taken from it since stays taken
    accounts                 with their password hash, disabled if they were. Their generation is greater than every one
                             that the cluster or the source of the backup has given out up to the backup, so no token
                             and no login from before is valid
    grants                   of such accounts: in force as they were, but
      for exactly a topic    parked, unless that topic was restored from the same backup under its name (hazard 117)
      of other principals    parked (certificates, issuers, Danube, anonymous): nothing of theirs can be made older
      of administration      parked: whoever can write a backup must not become an administrator by its restore
    roles                    as they were; one that contains administration does not come back, nor do its grants
    never                    tokens, revocations, signing keys, the switch

Records that cannot be decoded are not in the state, so they do not come back. A batch holds a principal with its
account and all its grants, so a restore that is repeated after a crash continues with the next principal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.metadata.command import Operation, Put
from icestream.model.topic_name import TopicName
from icestream.security import security_records as records
from icestream.security.access_policy import Grant
from icestream.security.principal import Principal, PrincipalKind, check_principal_name, local_user, service_account
from icestream.security.security_changes import account_key
from icestream.security.security_state import SecurityState

_BATCH_OPERATIONS: Final = limits.METADATA_TXN_OPERATIONS_MAX // 2
_BATCH_BYTES: Final = limits.METADATA_TXN_BYTES_MAX // 2


class RestoredAccounts(msgspec.Struct, frozen=True):
    """What came back. `parked`: the ids of grants that an administrator confirms with `security grants unpark`."""

    accounts: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    def __add__(self, other: RestoredAccounts) -> RestoredAccounts:
        return RestoredAccounts(
            self.accounts + other.accounts,
            self.roles + other.roles,
            self.grants + other.grants,
            self.parked + other.parked,
        )


@dataclass
class RestoreBatch:
    """The operations of one transaction, and the serial number that `/security/changes` gets with it.

    The number is also the generation of the accounts: those of the source of the backup may be greater than ours.
    """

    serial: int
    operations: list[Operation] = field(default_factory=list)
    restored: RestoredAccounts = field(default_factory=RestoredAccounts)

    def add(self, operations: Sequence[Put], restored: RestoredAccounts) -> bool:
        """Adds operations that belong together; False if they are for the next batch."""
        if self.operations and (
            len(self.operations) + len(operations) > _BATCH_OPERATIONS
            or sum(map(_put_bytes, self.operations)) + sum(map(_put_bytes, operations)) > _BATCH_BYTES
        ):
            return False
        self.operations += operations
        self.restored += restored
        return True


def plan_restore(state: SecurityState, stored: SecurityState, restored_topics: Collection[TopicName]) -> RestoreBatch:
    """The next batch of what comes back from `stored` into `state`; one without operations when all has come back.

    Raises MetadataFull if accounts, roles or grants would be more than a cluster may have.
    """
    batch = RestoreBatch(serial=max(state.serial, stored.serial) + 1)
    added = {"accounts": 0, "roles": 0, "grants": 0}
    for name, role in stored.role_records.items():
        if not _comes_back(state, stored, name):
            continue
        _count(added, "roles", len(state.role_records), limits.SECURITY_ROLES_MAX, [name])
        if not batch.add([Put(records.role_key(name), records.encode(role))], RestoredAccounts(roles=(name,))):
            return batch
    if batch.operations:
        return batch  # grants are planned for a state that has the roles
    topic_grants = _count_topic_grants(state)
    for principal in _principals(stored):
        if state.account(principal) is not None or state.grants_of(principal):
            continue
        operations, restored = _principal_operations(state, stored, principal, batch.serial, restored_topics)
        if not operations:
            continue
        _count(
            added, "accounts", len(state.users) + len(state.services), limits.SECURITY_ACCOUNTS_MAX, restored.accounts
        )
        _count(added, "grants", len(state.grants), limits.SECURITY_GRANTS_MAX, restored.grants)
        for put in operations:
            topic = _topic_prefix(put.key)
            if topic is not None:
                topic_grants[topic] = topic_grants.get(topic, 0) + 1
                if topic_grants[topic] > limits.SECURITY_GRANTS_EACH_MAX:
                    raise _full(f"grants below {topic}", limits.SECURITY_GRANTS_EACH_MAX)
        if not batch.add(operations, restored):
            break
    return batch


def _comes_back(state: SecurityState, stored: SecurityState, name: str) -> bool:
    if name in state.role_records or stored.role_records[name].is_built_in or not _is_name(name):
        return False
    return not any(rule.is_administration for rule in stored.roles[name].rules)


def _is_name(text: str) -> bool:
    try:
        check_principal_name(text)
    except errors.InvalidInput:
        return False
    return True


def _principals(stored: SecurityState) -> list[Principal]:
    """Every principal with an account or a grant, each once."""
    users, services = filter(_is_name, stored.users), filter(_is_name, stored.services)
    accounts = [*map(local_user, users), *map(service_account, services)]
    return list(dict.fromkeys([*accounts, *(grant.principal for grant in stored.grants.values())]))


def _principal_operations(
    state: SecurityState,
    stored: SecurityState,
    principal: Principal,
    generation: int,
    restored_topics: Collection[TopicName],
) -> tuple[list[Put], RestoredAccounts]:
    """The account of a principal, if it has one, and its grants."""
    operations: list[Put] = []
    account = stored.account(principal)
    if account is not None:
        renewed = msgspec.structs.replace(account, generation=generation)
        operations.append(Put(account_key(principal), records.encode(renewed)))
    elif principal.kind in (PrincipalKind.USER, PrincipalKind.SERVICE) or principal.is_internal:
        return [], RestoredAccounts()  # grants of an account that the backup does not have
    grants, parked = [], []
    for grant in stored.grants_of(principal):
        if grant.grant_id in state.grants or (grant.role and grant.role not in state.roles):
            continue
        record = stored.grant_records[grant.grant_id]
        if _is_parked(state, grant, restored_topics, has_account=account is not None):
            record = msgspec.structs.replace(record, is_parked=True)
            parked.append(grant.grant_id)
        key = records.grant_key(grant.grant_id, record.rule, record.scope)
        operations.append(Put(key, records.encode(record)))
        grants.append(grant.grant_id)
    accounts = (str(principal),) if account is not None else ()
    return operations, RestoredAccounts(accounts, (), tuple(grants), tuple(parked))


def _is_parked(
    state: SecurityState, grant: Grant, restored_topics: Collection[TopicName], *, has_account: bool
) -> bool:
    if grant.is_parked or not has_account:
        return True
    role = state.roles.get(grant.role)
    rules = [grant.rule] if grant.rule is not None else [] if role is None else role.rules
    if grant.scope is None and any(rule.is_administration for rule in rules):
        return True
    place = grant.scope or (grant.rule.pattern if grant.rule is not None else None)
    topic = records.exact_topic(place) if place is not None else None
    return topic is not None and topic not in restored_topics


def _count_topic_grants(state: SecurityState) -> dict[str, int]:
    counts: dict[str, int] = {}
    for key in state.grant_keys.values():
        topic = _topic_prefix(key)
        if topic is not None:
            counts[topic] = counts.get(topic, 0) + 1
    return counts


def _topic_prefix(key: str) -> str | None:
    return key.rpartition("/")[0] if key.startswith(records.TOPIC_GRANTS) else None


def _count(added: dict[str, int], kind: str, present: int, most: int, names: Sequence[str]) -> None:
    added[kind] += len(names)
    if present + added[kind] > most:
        raise _full(kind, most)


def _full(kind: str, most: int) -> errors.MetadataFull:
    return errors.MetadataFull(
        f"the restored accounts would be more than {most} {kind}, the maximum",
        hint="delete those of this cluster that are not used, and restore again: it goes on where it stopped",
    )


def _put_bytes(operation: Operation) -> int:
    return len(operation.key) + len(operation.value) if isinstance(operation, Put) else 0
