from .guard import (
    BrowserGuard as BrowserGuard,
    accepted_hosts as accepted_hosts,
)
from .http import (
    JSON as JSON,
    ClientGone as ClientGone,
    Headers as Headers,
    HTTPError as HTTPError,
    Message as Message,
    Receive as Receive,
    Send as Send,
    Stream as Stream,
    error_details as error_details,
    read_body as read_body,
    reject_non_finite as reject_non_finite,
    send_response as send_response,
    send_stream as send_stream,
    while_connected as while_connected,
)
from .launcher import (
    LaunchMode as LaunchMode,
    PythonServerLauncher as PythonServerLauncher,
    PythonServerLauncherArgs as PythonServerLauncherArgs,
)
from .options import (
    listen_options as listen_options,
    log_level_option as log_level_option,
    port_option as port_option,
)
from .signals import (
    freeze_memory as freeze_memory,
    stop_signal as stop_signal,
)
from .sockets import (
    LOOPBACK as LOOPBACK,
    bind_socket as bind_socket,
    is_loopback as is_loopback,
    is_wildcard as is_wildcard,
    outbound_address as outbound_address,
    url_host as url_host,
)
from .starting import (
    start_in_thread as start_in_thread,
)
from .tokens import (
    ATTEMPT_TOKEN_SECONDS as ATTEMPT_TOKEN_SECONDS,
    MIN_SECRET_LENGTH as MIN_SECRET_LENGTH,
    SCOPES as SCOPES,
    Identity as Identity,
    Scope as Scope,
    TokenVerifier as TokenVerifier,
    is_token as is_token,
    mint_token as mint_token,
)
from .uvicorn_server import (
    SocketServer as SocketServer,
    probe_health as probe_health,
    run_in_new_loop as run_in_new_loop,
)
