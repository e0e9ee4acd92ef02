"""`icestream security`: accounts, tokens, roles, grants and decisions. Over the local socket only.

Before `security init` every client may do everything; from then on what no grant allows is denied.
Passwords come from a prompt, a file or stdin (password_input.py), tokens from a login (login_profile.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from icestream import errors
from icestream.admin_api import security_api as api
from icestream.admin_api.admin_call import AdminCall
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.login_profile import write_login
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, columns_of, print_note
from icestream.cli.password_input import PasswordFile, read_password

app = Commands("Accounts, tokens, roles, grants, and who may do what.")
users = Commands("List, create, change and delete users and service accounts.")
tokens = Commands("List, issue and revoke tokens; rotate the keys that sign them.")
roles = Commands("List, define and delete roles.")
grants = Commands("List, add, delete and unpark grants.")
app.add_typer(users, name="users")
app.add_typer(tokens, name="tokens")
app.add_typer(roles, name="roles")
app.add_typer(grants, name="grants")

AccountName = Annotated[str, typer.Argument(metavar="NAME", help="Such as alice.")]
PrincipalText = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL", help="Such as alice (a user), service:local:ingest, oidc:corp:alice, anonymous."
    ),
]
OptionalPrincipal = Annotated[
    str, typer.Option("--principal", metavar="PRINCIPAL", help="Only of this one; default: of all.")
]
IsService = Annotated[bool, typer.Option("--service", help="A service account, which has tokens and no password.")]
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="Such as reader.")]
GrantId = Annotated[str, typer.Argument(metavar="GRANT", help="Its id; `grants list` shows it.")]
_DAY_SECONDS: Final = 24 * 3600
_ACCOUNT_COLUMNS = columns_of(api.AccountDetails, "principal", "is_disabled", "grants", "tokens", "created_ms")
_TOKEN_COLUMNS = columns_of(api.TokenDetails, "token_id", "principal", "note", "created_ms", "expires_ms")
_KEY_COLUMNS = columns_of(api.SigningKeyDetails, "key_id", "is_signing", "created_ms")
_ROLE_COLUMNS = columns_of(api.RoleDetails, "role", "is_built_in", "rules")
_GRANT_COLUMNS = columns_of(
    api.GrantDetails, "grant_id", "principal", "role", "actions", "resource", "scope", "is_parked", "created_ms"
)


def _call(target: Target, call: AdminCall[Any, Any], *, is_anonymous: bool = False, **arguments: object) -> Document:
    async def send(broker: BrokerCalls) -> Document:
        return await broker.call(call, **arguments)

    return call_broker(target, send, is_anonymous=is_anonymous)


def _items(target: Target, call: AdminCall[Any, Any], **arguments: object) -> list[Document]:
    async def list_all(broker: BrokerCalls) -> list[Document]:
        return await broker.items(call, **arguments)

    return call_broker(target, list_all)


def _note_pending(change: Document) -> None:
    if change["pending_nodes"]:
        print_note(f"not applied yet on: {', '.join(change['pending_nodes'])}")


def _time(milliseconds: int | None) -> Cell | None:
    if milliseconds is None:
        return None
    text = datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return Cell(milliseconds, text)


def _row(entry: Document, columns: tuple[str, ...]) -> list[object]:
    return [_time(entry[name]) if name.endswith("_ms") else entry[name] for name in columns]


# --- the switch and the caller ----------------------------------------------------------------------------------------


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The first administrator.")] = "admin",
    password_file: PasswordFile = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Switch security on, with its first administrator. It cannot be switched off again.

    From then on every connection needs a credential, and what no grant allows is denied. Clients that are connected
    lose what they have open, and connect again with a credential.

    Example: icestream security init admin --password-file admin.password
    """
    password = read_password(password_file, is_new=True)
    report = _call(Target(broker, config, sets), api.INIT_SECURITY, is_anonymous=True, name=name, password=password)
    answer = Output(output)
    answer.record({"principal": report["principal"], "pending_nodes": report["pending_nodes"]})
    _note_pending(report)
    for line in _next_steps(name, is_clustered=report["is_clustered"]):
        answer.print_line(line)


def _next_steps(name: str, *, is_clustered: bool) -> list[str]:
    copies = [
        "Copy security/wrapping.key of this data_dir to every other node, mode 0600: it unwraps the signing keys."
    ]
    return [
        "Security is on. Next:",
        *(copies if is_clustered else []),
        f"`icestream security login {name}`",
        "`icestream security users create ingest --service`",
        "`icestream security grants add service:local:ingest write /default/orders`",
        "`icestream security tokens create service:local:ingest`",
    ]


@app.command()
def recover(
    name: AccountName,
    password_file: PasswordFile = None,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make a user an administrator with a new password, when no administrator can log in.

    Only the owner of the data directory can, on the broker's machine. It is recorded in the audit.

    Example: icestream security recover admin --password-file admin.password --yes
    """
    confirm(f"Make {name} an administrator with a new password?", is_confirmed=yes, unchanged="nothing was changed")
    password = read_password(password_file, is_new=True)
    target = Target(broker, config, sets)
    change = _call(target, api.RECOVER_SECURITY, is_anonymous=True, name=name, password=password)
    Output(output).record({"recovered": name})
    _note_pending(change)


@app.command()
def login(
    name: AccountName,
    password_file: PasswordFile = None,
    hours: Annotated[
        int | None, typer.Option(min=1, help="How long the login lasts; default: security.login_token_ttl_ms.")
    ] = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Log in with a password: later commands for this broker use the token that it gives.

    Example: icestream security login alice
    """
    password = read_password(password_file, is_new=False)
    target = Target(broker, config, sets)
    ttl_seconds = None if hours is None else hours * 3600
    issued = _call(target, api.LOGIN, is_anonymous=True, name=name, password=password, ttl_seconds=ttl_seconds)
    path = write_login(target.location, issued["token"])
    Output(output).record(
        {
            "principal": issued["principal"],
            "token_id": issued["token_id"],
            "expires_ms": _time(issued["expires_ms"]),
            "file": str(path),
        }
    )


@app.command()
def whoami(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the principal that this command authenticates as, and its grants.

    Example: icestream security whoami
    """
    caller = _call(Target(broker, config, sets), api.WHOAMI)
    Output(output).record({**caller, "expires_ms": _time(caller["expires_ms"])})


@app.command()
def explain(
    principal: PrincipalText,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="Such as consume, produce, table-read.")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Such as /shop/orders, mqtt:sensors/1/t, cluster.")
    ],
    role: Annotated[list[str] | None, typer.Option(help="A role that the credential would bring; repeatable.")] = None,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A claim that it would have; repeatable.")
    ] = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Explain whether a principal may do something, and which rule decides.

    Example: icestream security explain alice consume /default/orders
    Example: icestream security explain oidc:corp:bob produce /shop/orders --claim team=shop
    Example: icestream security explain alice produce mqtt:sensors/1/temperature
    """
    claims = dict(_assignment(text) for text in claim or ())
    target = Target(broker, config, sets)
    explanation = _call(
        target,
        api.EXPLAIN_ACCESS,
        principal=principal,
        action=action,
        resource=resource,
        roles=role or [],
        claims=claims,
    )
    answer = Output(output)
    if not answer.is_text:
        answer.document(explanation)
        return
    verdict = "allowed" if explanation["is_allowed"] else "denied"
    answer.print_line(f"{verdict}: {explanation['reason']}")
    for rule in explanation["rules"]:
        answer.print_line(f"  {'allows' if rule['allows'] else 'does not match'}: {rule['rule']} ({rule['source']})")


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise errors.InvalidInput(f"{text!r} is not a claim", hint="for example --claim team=shop")
    return name, value


@app.command("process-secret")
def process_secret(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="lake or pipeline.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete the file: such a process is refused.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Make the secret of a lake process or pipeline that you run yourself, in a file of the broker's data directory.

    `icestream lake serve` and `icestream pipeline run` read it there, or in the file that ICESTREAM_ROLE_SECRET_FILE
    names. A second call makes a new secret and ends the older one. Processes that the broker starts need none.

    Example: icestream security process-secret lake
    """
    call = api.DELETE_PROCESS_SECRET if delete else api.CREATE_PROCESS_SECRET
    answer = _call(Target(broker, config, sets), call, role=role)
    Output(output).record({"role": answer["role"], "deleted" if delete else "file": answer["file"]})


# --- users ------------------------------------------------------------------------------------------------------------


@users.command("list")
def list_users(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List users and service accounts.

    Example: icestream security users list
    """
    entries = _items(Target(broker, config, sets), api.PAGE_ACCOUNTS)
    Output(output).table(_ACCOUNT_COLUMNS, [_row(entry, _ACCOUNT_COLUMNS) for entry in entries])


@users.command("create")
def create_user(
    name: AccountName,
    service: IsService = False,
    password_file: PasswordFile = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a user, which logs in with a password, or a service account, which has tokens.

    Example: icestream security users create alice --password-file alice.password
    Example: icestream security users create ingest --service
    """
    password = "" if service else read_password(password_file, is_new=True)
    kind = "service" if service else "user"
    account = _call(Target(broker, config, sets), api.CREATE_ACCOUNT, kind=kind, name=name, password=password)
    Output(output).record({**account, "created_ms": _time(account["created_ms"])})


@users.command("password")
def set_password(
    name: AccountName,
    password_file: PasswordFile = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Set the password of a user; its logins and tokens end.

    Example: icestream security users password alice --password-file alice.password
    """
    password = read_password(password_file, is_new=True)
    change = _call(Target(broker, config, sets), api.CHANGE_ACCOUNT, principal=name, password=password)
    Output(output).record({"changed": name})
    _note_pending(change)


@users.command("disable")
def disable_user(
    principal: PrincipalText,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Disable an account: its connections close, its tokens end; its grants stay.

    Example: icestream security users disable alice
    """
    _set_disabled(Target(broker, config, sets), principal, Output(output), is_disabled=True)


@users.command("enable")
def enable_user(
    principal: PrincipalText,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Enable a disabled account. A service account needs new tokens.

    Example: icestream security users enable alice
    """
    _set_disabled(Target(broker, config, sets), principal, Output(output), is_disabled=False)


def _set_disabled(target: Target, principal: str, answer: Output, *, is_disabled: bool) -> None:
    change = _call(target, api.CHANGE_ACCOUNT, principal=principal, is_disabled=is_disabled)
    answer.record({"disabled" if is_disabled else "enabled": principal})
    _note_pending(change)


@users.command("delete")
def delete_user(
    principal: PrincipalText,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete an account with its grants and tokens; its connections close.

    Example: icestream security users delete alice --yes
    """
    confirm(f"Delete {principal} with its grants and tokens?", is_confirmed=yes)
    change = _call(Target(broker, config, sets), api.DELETE_ACCOUNT, principal=principal)
    Output(output).record({"deleted": principal})
    _note_pending(change)


# --- tokens -----------------------------------------------------------------------------------------------------------


@tokens.command("list")
def list_tokens(
    principal: OptionalPrincipal = "",
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the tokens that are valid: ids and expiry, never a token itself.

    Example: icestream security tokens list --principal service:local:ingest
    """
    entries = _items(Target(broker, config, sets), api.PAGE_TOKENS, principal=principal)
    Output(output).table(_TOKEN_COLUMNS, [_row(entry, _TOKEN_COLUMNS) for entry in entries], keep=("token_id",))


@tokens.command("create")
def create_token(
    principal: PrincipalText,
    days: Annotated[int, typer.Option(min=1, help="How long the token is valid.")] = 90,
    note: Annotated[str, typer.Option(help="For which program it is issued.")] = "",
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Issue a token and print it, once: it is not stored anywhere.

    Example: icestream security tokens create service:local:ingest --days 30 --note nightly
    """
    ttl_seconds = days * _DAY_SECONDS
    issued = _call(
        Target(broker, config, sets), api.CREATE_TOKEN, principal=principal, ttl_seconds=ttl_seconds, note=note
    )
    Output(output).record({**issued, "expires_ms": _time(issued["expires_ms"])})


@tokens.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="The id of a token; or, with --all, a principal.")],
    everything: Annotated[bool, typer.Option("--all", help="Revoke all tokens of a principal.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Revoke a token, or all tokens of an account; connections that use them close.

    Example: icestream security tokens revoke service:local:ingest --all
    """
    target = Target(broker, config, sets)
    if everything:
        change = _call(target, api.REVOKE_ALL_TOKENS, principal=token)
    else:
        change = _call(target, api.REVOKE_TOKEN, token_id=token)
    Output(output).record({"revoked": token})
    _note_pending(change)


@tokens.command("rotate-keys")
def rotate_keys(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Sign new tokens with a new key; older keys verify until their tokens have expired.

    Example: icestream security tokens rotate-keys
    """
    change = _call(Target(broker, config, sets), api.ROTATE_KEYS)
    Output(output).record({"key_ids": change["key_ids"]})
    _note_pending(change)


@tokens.command("keys")
def list_keys(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the keys whose tokens are accepted, by id; the newest one signs.

    Example: icestream security tokens keys
    """
    keys = _call(Target(broker, config, sets), api.LIST_KEYS)["keys"]
    Output(output).table(_KEY_COLUMNS, [_row(key, _KEY_COLUMNS) for key in keys], keep=("key_id",))


@tokens.command("remove-key")
def remove_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id; `tokens keys` shows it.")],
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Remove a signing key that has leaked: every token that it signed ends, logins too. Rotate first.

    Example: icestream security tokens remove-key 3f9a1c0b7d5e2468 --yes
    """
    confirm(f"Remove key {key}, and end every token that it signed?", is_confirmed=yes)
    change = _call(Target(broker, config, sets), api.REMOVE_KEY, key_id=key)
    Output(output).record({"removed": key, "key_ids": change["key_ids"]})
    _note_pending(change)


# --- roles ------------------------------------------------------------------------------------------------------------


@roles.command("list")
def list_roles(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the roles with their rules.

    Example: icestream security roles list
    """
    entries = _items(Target(broker, config, sets), api.PAGE_ROLES)
    rows = [(entry["role"], entry["is_built_in"], _rules_cell(entry["rules"])) for entry in entries]
    Output(output).table(_ROLE_COLUMNS, rows, keep=("rules",))


def _rules_cell(rules: list[Document]) -> Cell:
    return Cell(rules, "; ".join(f"{','.join(rule['actions'])} {rule['resource']}" for rule in rules))


@roles.command("set")
def set_role(
    role: RoleName,
    rule: Annotated[
        list[str], typer.Option(metavar="RULE", help="Actions and a resource: 'read,produce /shop/*'; repeatable.")
    ],
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a role, or replace its rules; it applies at once to all that have the role.

    Example: icestream security roles set shop-team --rule 'read,write /shop/*' --rule 'describe namespace:/shop'
    """
    rules = [_parse_rule(text) for text in rule]
    entry = _call(Target(broker, config, sets), api.PUT_ROLE, role=role, rules=rules)
    Output(output).record({**entry, "rules": _rules_cell(entry["rules"])})


def _parse_rule(text: str) -> api.RoleRule:
    actions, _, resource = text.strip().partition(" ")
    if not resource.strip():
        raise errors.InvalidInput(f"{text!r} is not a rule", hint="for example --rule 'read /shop/*'")
    return api.RoleRule(actions.split(","), resource.strip())


@roles.command("delete")
def delete_role(
    role: RoleName,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a role without grants.

    Example: icestream security roles delete shop-team --yes
    """
    confirm(f"Delete role {role}?", is_confirmed=yes)
    change = _call(Target(broker, config, sets), api.DELETE_ROLE, role=role)
    Output(output).record({"deleted": role})
    _note_pending(change)


# --- grants -----------------------------------------------------------------------------------------------------------


@grants.command("list")
def list_grants(
    principal: OptionalPrincipal = "",
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the grants; a parked one has no effect until it is unparked.

    Example: icestream security grants list --principal alice
    """
    entries = _items(Target(broker, config, sets), api.PAGE_GRANTS, principal=principal)
    Output(output).table(_GRANT_COLUMNS, [_row(entry, _GRANT_COLUMNS) for entry in entries], drop=("created_ms",))


@grants.command("add")
def add_grant(
    principal: PrincipalText,
    actions: Annotated[
        str | None, typer.Argument(metavar="ACTIONS", help="Such as read, or produce,consume; not with --role.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Argument(metavar="RESOURCE", help="Such as /shop/orders, '/shop/*', 'mqtt:sensors/#', cluster."),
    ] = None,
    role: Annotated[str, typer.Option(metavar="ROLE", help="Grant this role instead.")] = "",
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="The role applies here only: /shop/orders, namespace:/shop.")
    ] = "",
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Grant actions on a resource, or a role.

    Example: icestream security grants add alice read /default/orders
    Example: icestream security grants add service:local:ingest --role writer --scope namespace:/shop
    """
    grant = _call(
        Target(broker, config, sets),
        api.CREATE_GRANT,
        principal=principal,
        role=role,
        actions=actions.split(",") if actions else [],
        resource=resource or "",
        scope=scope,
    )
    Output(output).record({**grant, "created_ms": _time(grant["created_ms"])})


@grants.command("delete")
def delete_grant(
    grant: GrantId,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a grant; what was open by it closes.

    Example: icestream security grants delete 1f2e3d4c5b6a --yes
    """
    confirm(f"Delete grant {grant}?", is_confirmed=yes)
    change = _call(Target(broker, config, sets), api.DELETE_GRANT, grant_id=grant)
    Output(output).record({"deleted": grant})
    _note_pending(change)


@grants.command("unpark")
def unpark_grant(
    grant: GrantId,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Put a grant in force again whose topic was deleted, for the topic of that name today.

    Example: icestream security grants unpark 1f2e3d4c5b6a
    """
    change = _call(Target(broker, config, sets), api.UNPARK_GRANT, grant_id=grant)
    Output(output).record({"unparked": grant})
    _note_pending(change)
