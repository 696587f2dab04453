"""Hooks of the dashboard: the app on the store server, ``agl dashboard``, and a check."""

from agl_core.plugins import AppSpec, CheckSpec, CommandSpec, hookimpl


@hookimpl
def agl_app() -> AppSpec:
    return AppSpec(
        name="dashboard",
        path="/dashboard",
        factory="agl_dashboard.app:make_app",
        # The files hold no data. The page asks for a token and sends it with each API request.
        scope="public",
        summary="Web page: live rollouts, traces, rewards, training, workers, resources",
        api=1,
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="dashboard",
        target="agl_dashboard.cli:dashboard",
        summary="Show a store, from a file or a server, as a web page",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="dashboard",
        check="agl_dashboard.check:check_page",
        summary="Whether the page of the dashboard is installed",
        api=1,
    )
