"""The changes of security: each is one transaction, planned for the state that it applies to (security_changes.py).

A change waits until it is in force on this node. Other nodes apply it when their metadata store does (policy_watch.py).

The two that do not go through `_change`: `init`, which creates everything if the switch is absent, and the parking of
grants, which is a part of the transaction that deletes a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from icestream import errors, limits
from icestream.metadata.command import Absent, AtRevision, Compare, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.security import security_changes as changes
from icestream.security import security_records as records
from icestream.security.policy_watch import PolicyWatch
from icestream.security.principal import Principal
from icestream.security.restored_accounts import RestoreBatch, RestoredAccounts, plan_restore
from icestream.security.security_state import SecurityState

Plan = Callable[[SecurityState], changes.Operations]


class SecurityStore:
    """The use cases of administrators. `watch` is that of this node and must be running."""

    def __init__(self, store: MetadataStore, watch: PolicyWatch, clock: Clock, randomness: Randomness) -> None:
        self._store = store
        self._watch = watch
        self._clock = clock
        self._randomness = randomness

    @property
    def state(self) -> SecurityState:
        """What this node has applied."""
        return self._watch.state

    def new_id(self) -> str:
        """The id of a new grant."""
        return self._randomness.token(6).hex()

    def now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    # --- the switch ---

    async def init(self, name: str, password_hash: str, key_ring: bytes) -> int:
        """Switches security on, with its first administrator; returns the revision. Raises AlreadyExists.

        Of two concurrent ones the first takes all effect, the second none.
        """
        operations = changes.plan_init(name, password_hash, key_ring, self.new_id(), self.now_ms())
        first = Put(records.CHANGES, records.encode(records.ChangesRecord(1)))
        done = await self._store.txn([Absent(records.ENABLED), Absent(records.CHANGES)], [*operations, first])
        if not done.held:
            raise errors.AlreadyExists(
                "security is already on",
                hint="log in with `icestream security login`; `icestream security recover` if no administrator can",
            )
        await self._watch.until_applied(done.revision)
        return done.revision

    async def recover(self, name: str, password_hash: str) -> int:
        """Makes a user an administrator with this password."""
        return await self._change(
            lambda state: changes.plan_recovery(state, name, password_hash, self.new_id(), self.now_ms())
        )

    # --- accounts ---

    async def create_user(self, name: str, password_hash: str) -> int:
        return await self._change(lambda state: changes.plan_user(state, name, password_hash, self.now_ms()))

    async def create_service(self, name: str) -> int:
        return await self._change(lambda state: changes.plan_service(state, name, self.now_ms()))

    async def set_password(self, name: str, password_hash: str) -> int:
        return await self._change(lambda state: changes.plan_password(state, name, password_hash))

    async def set_disabled(self, principal: Principal, *, is_disabled: bool) -> int:
        return await self._change(lambda state: changes.plan_disabling(state, principal, is_disabled=is_disabled))

    async def delete_account(self, principal: Principal) -> int:
        return await self._change(lambda state: changes.plan_account_deletion(state, principal))

    # --- roles and grants ---

    async def put_role(self, name: str, rules: Sequence[records.RuleRecord]) -> int:
        return await self._change(lambda state: changes.plan_role(state, name, rules))

    async def delete_role(self, name: str) -> int:
        return await self._change(lambda state: changes.plan_role_deletion(state, name))

    async def grant(
        self, principal: Principal, role: str = "", rule: records.RuleRecord | None = None, scope: str = ""
    ) -> str:
        """Grants a role or a rule; returns the id of the grant."""
        grant_id = self.new_id()
        await self._change(
            lambda state: changes.plan_grant(state, grant_id, principal, role, rule, self.now_ms(), scope),
        )
        return grant_id

    async def bind(self, binding: str, principal: Principal, roles: Sequence[str], scope: str) -> int:
        """Grants several roles under one id (`plan_binding`)."""
        grant_ids = [self.new_id() for _ in roles]
        return await self._change(
            lambda state: changes.plan_binding(state, binding, grant_ids, principal, roles, scope, self.now_ms())
        )

    async def unbind(self, binding: str, scope: str) -> int:
        return await self._change(lambda state: changes.plan_binding_deletion(state, binding, scope))

    async def delete_grant(self, grant_id: str) -> int:
        return await self._change(lambda state: changes.plan_grant_deletion(state, grant_id))

    async def unpark(self, grant_id: str) -> int:
        return await self._change(lambda state: changes.plan_unparking(state, grant_id))

    # --- tokens and keys ---

    async def record_token(self, token_id: str, principal: Principal, expires_us: int, note: str = "") -> int:
        """Records an issued token. Called before the token is handed out, so that each one can be revoked."""
        return await self._change(
            lambda state: changes.plan_token(state, token_id, principal, expires_us // 1000, note, self.now_ms())
        )

    async def revoke_token(self, token_id: str) -> int:
        return await self._change(lambda state: changes.plan_token_revocation(state, token_id, self.now_ms()))

    async def revoke_all_tokens(self, principal: Principal) -> int:
        return await self._change(lambda state: changes.plan_all_tokens_revocation(state, principal))

    async def change_keys(self, change: Callable[[bytes], bytes]) -> int:
        """Replaces the ring of signing keys by what `change` makes of the present one."""
        return await self._change(lambda state: [Put(records.KEY_RING, change(state.wrapped_keys))])

    # --- backups ---

    async def restore_accounts(
        self, entries: Iterable[tuple[str, bytes, int]], restored_topics: Collection[TopicName] = ()
    ) -> RestoredAccounts:
        """Takes over accounts, roles and grants of a backup by the rule of restored_accounts.py; returns which.

        `entries`          key, value and revision of what the metadata snapshot of the backup has; keys outside of
                           `/security/` are ignored, and so are its tokens, revocations, signing keys and switch
        `restored_topics`  topics that were restored from this backup under their own names: grants for exactly one of
                           them are in force, those for exactly another topic come back parked

        For restores that were asked to bring accounts back; others leave this out, and nothing comes back. The caller
        requires `admin` on the cluster, and records the change in the audit before it (`ChangeAudit.change`). A call
        that was cut off can be repeated: it continues. Raises MetadataFull; InvalidInput while security is off, as
        accounts without the switch would protect nothing.
        """
        stored = SecurityState.load(entry for entry in entries if entry[0].startswith(records.SECURITY))
        total = RestoredAccounts()
        while True:
            batches: list[RestoreBatch] = []

            def plan(state: SecurityState, batches: list[RestoreBatch] = batches) -> tuple[changes.Operations, int]:
                batches.append(plan_restore(state, stored, restored_topics))
                return batches[-1].operations, batches[-1].serial

            await self._apply(plan)
            if not batches[-1].operations:
                return total
            total += batches[-1].restored

    async def _change(self, plan: Plan) -> int:
        """Applies a change to the present state; returns its revision. Raises what the plan raises, NotReady."""
        return await self._apply(lambda state: (plan(state), state.serial + 1))

    async def _apply(self, plan: Callable[[SecurityState], tuple[changes.Operations, int]]) -> int:
        """`plan` also returns the serial number of the change, greater than the present one."""
        for _ in range(limits.SECURITY_ATTEMPTS_MAX):
            await self._watch.until_current()
            state = self.state
            if not state.is_enabled:
                raise security_is_off()
            operations, serial = plan(state)
            done = await self._store.txn(
                [AtRevision(records.CHANGES, state.changes_revision)],
                [*operations, Put(records.CHANGES, records.encode(records.ChangesRecord(serial)))],
            )
            if done.held:
                await self._watch.until_applied(done.revision)
                return done.revision
        raise errors.NotReady("other changes of security kept this one from being made", hint="try again")


def security_is_off() -> errors.InvalidInput:
    return errors.InvalidInput(
        "security is off: every client that reaches this broker may do everything",
        hint="switch it on: icestream security init",
    )


async def plan_parking(store: MetadataStore, topic: TopicName) -> tuple[list[Compare], list[Operation]]:
    """What the transaction that deletes a topic adds, so that a topic of the same name inherits no grant (hazard 117).

    Its comparisons fail if security changed meanwhile; the caller then plans again.
    """
    stored = await store.get(records.CHANGES)
    if stored is None:
        return [Absent(records.CHANGES)], []
    compare: list[Compare] = [AtRevision(records.CHANGES, stored.mod_revision)]
    operations: list[Operation] = []
    for key, entry in await store.list_all(records.topic_grants_prefix(topic)):
        try:
            grant = records.decode(records.GrantRecord, entry.value)
        except errors.InvalidInput:
            continue  # it gives no right
        if not grant.is_parked:
            operations.append(Put(key, records.encode(msgspec.structs.replace(grant, is_parked=True))))
    if operations:
        serial = records.decode(records.ChangesRecord, stored.value).serial + 1
        operations.append(Put(records.CHANGES, records.encode(records.ChangesRecord(serial))))
    return compare, operations
