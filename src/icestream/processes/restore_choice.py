"""What of a backup is restored, as the command and the HTTP API name it, and the plan that it is for one backup."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from icestream import errors
from icestream.backup.backup_root import BackupRoot, TopicCut
from icestream.backup.stored_backups import StoredBackups
from icestream.model.topic_name import TopicName, check_namespace
from icestream.processes.restore_run import RestorePlan, restorable_topics
from icestream.processes.state_restore import RestoreScope


class RestoreChoice(msgspec.Struct, frozen=True):
    """`topics` are patterns of names. `new_name`: of the one topic that they name, or of `namespace`."""

    topics: list[str] = []
    namespace: str | None = None
    new_name: str | None = None
    everything: bool = False
    accounts: bool = False
    subscriptions: bool = True
    in_place: bool = False
    bring_back_erased: bool = False

    def check(self) -> None:
        """Raises InvalidInput for parts that exclude each other."""
        is_partial = self.topics or self.namespace or self.new_name or not self.subscriptions
        if self.everything and is_partial:
            raise errors.InvalidInput("--everything leaves nothing out", hint="omit the other options")
        if self.namespace and self.topics:
            raise errors.InvalidInput("--namespace and --topics both choose topics", hint="give one of them")
        if self.in_place and not (self.topics or self.namespace):
            raise errors.InvalidInput(
                "--in-place replaces named topics only", hint="name them with --topics or --namespace"
            )

    @property
    def scope(self) -> RestoreScope:
        if self.everything:
            return RestoreScope.EVERYTHING
        is_partial = self.topics or self.namespace or self.new_name or not self.subscriptions
        return RestoreScope.TOPICS if is_partial else RestoreScope.EMPTY


async def restore_plan(stored: StoredBackups, root: BackupRoot, choice: RestoreChoice) -> RestorePlan:
    """The topics to restore, with their names. Raises UnknownTopic if the backup has none of a pattern or namespace,
    InvalidInput for a new name that fits not all of them."""
    choice.check()
    topics = await restorable_topics(stored, root)
    chosen = _chosen(topics, root, choice)
    if choice.namespace is not None:
        namespace = namespace_of(choice.new_name or choice.namespace)
        renamed = [(topic, TopicName(namespace, TopicName.parse(topic.name).name)) for topic in chosen]
    elif choice.new_name is not None and len(chosen) != 1:
        raise errors.InvalidInput(
            f"--as names one topic, {len(chosen)} are chosen",
            hint="choose one with --topics, or give a namespace: --namespace /shop --as /shop_restored",
        )
    else:
        renamed = [(topic, TopicName.parse(choice.new_name or topic.name)) for topic in chosen]
    is_one_named = len(renamed) == 1 and choice.namespace is None and bool(choice.topics or choice.new_name)
    return RestorePlan(
        renamed,
        choice.subscriptions,
        choice.scope,
        has_accounts=choice.accounts,
        skips_existing=not is_one_named,
        is_in_place=choice.in_place,
        brings_back_erased=choice.bring_back_erased,
    )


def _chosen(topics: Sequence[TopicCut], root: BackupRoot, choice: RestoreChoice) -> list[TopicCut]:
    hint = f"`icestream backup show {root.id}` lists its topics"
    if choice.namespace is not None:
        namespace = namespace_of(choice.namespace)
        chosen = [topic for topic in topics if TopicName.parse(topic.name).namespace == namespace]
        if not chosen:
            raise errors.UnknownTopic(f"backup {root.id} has no topic in namespace /{namespace}", hint=hint)
        return chosen
    for pattern in choice.topics:
        if not any(fnmatchcase(topic.name, pattern) for topic in topics):
            raise errors.UnknownTopic(f"backup {root.id} has no topic {pattern}", hint=hint)
    return [
        topic for topic in topics if not choice.topics or any(fnmatchcase(topic.name, name) for name in choice.topics)
    ]


def namespace_of(text: str) -> str:
    """A namespace as options name it, `/shop` or `shop`. Raises InvalidInput."""
    return check_namespace(text.removeprefix("/"))
