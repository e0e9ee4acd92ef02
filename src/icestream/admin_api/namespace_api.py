"""Namespaces and their policies."""

from __future__ import annotations

from typing import Final

import msgspec

from icestream.admin_api.admin_call import AdminCall, Answer, EmptyAnswer, Listing, Name, PageRequest
from icestream.model.topic_policies import PolicyValues


class NamespaceOnly(msgspec.Struct):
    namespace: str


class NewNamespace(msgspec.Struct):
    namespace: Name
    policies: PolicyValues = PolicyValues()


class NamespaceDetails(Answer):
    namespace: str
    policies: PolicyValues


LIST_NAMESPACES: Final = AdminCall("list_namespaces", PageRequest, Listing[NamespaceDetails])
DESCRIBE_NAMESPACE: Final = AdminCall("describe_namespace", NamespaceOnly, NamespaceDetails)
CREATE_NAMESPACE: Final = AdminCall("create_namespace", NewNamespace, NamespaceDetails)
DELETE_NAMESPACE: Final = AdminCall("delete_namespace", NamespaceOnly, EmptyAnswer)
SET_NAMESPACE_POLICIES: Final = AdminCall("set_namespace_policies", NewNamespace, NamespaceDetails)
