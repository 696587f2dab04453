"""Hooks of the doctor: the commands ``agl doctor`` and ``agl plugins doctor``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="doctor",
            target="agl_doctor.doctor_command:doctor",
            summary="Check the environment, the plugins and a store",
            api=1,
        ),
        CommandSpec(
            name="plugins.doctor",
            target="agl_doctor.plugins_command:plugins_doctor",
            summary="Import each plugin, check it, and say what to do about problems",
            api=1,
        ),
    ]
