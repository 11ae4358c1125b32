"""HTTP with time limits, so that clients that send half a request, or do not read an answer, hold no connection.

uvicorn waits without limit for the rest of a request. Here the head of a request must arrive within a few seconds, its
body must keep arriving, and the client must read the answer. If there are too many connections, the one that has kept
the server waiting longest is closed, so that clients with complete requests can always connect.
"""

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from dtrak.explorer.guard import HEADERS

MAX_CONNECTIONS = 512  # at a time
SECONDS_TO_SEND = 5  # for a head, and for each part of a body
PART = 64 << 10  # bytes of a body
SECONDS_TO_READ = 5  # for the part of an answer that does not fit into the system's buffers
WAITING = (h11.IDLE, h11.SEND_BODY)  # states of the client in which the server waits for it


class TimeLimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waiting_since: float | None = None  # when the server began to wait for a request or the rest of one
        self._awaited: Any = None  # what the client has to send before `_send_timer` ends
        self._send_timer: asyncio.TimerHandle | None = None
        self._arrived = 0  # bytes since `_send_timer` began
        self._read_timer: asyncio.TimerHandle | None = None  # ends if the client does not read its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._send_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(SECONDS_TO_READ, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a valid HTTP request")

    @property
    def _is_head_begun(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _watch(self) -> None:
        """Start the timer for the client, restart it after progress, or stop it if the server does not wait."""
        state = self.conn.their_state
        awaited = (state, self._is_head_begun)
        # Bytes that arrive after the answer are no progress.
        has_progress = self._arrived >= PART and self.conn.our_state is not h11.DONE
        if awaited == self._awaited and self._send_timer is not None and not has_progress:
            return
        if self._send_timer is not None:
            self._send_timer.cancel()
        self._awaited, self._arrived, self._send_timer, self.waiting_since = awaited, 0, None, None
        if state in WAITING and not self.transport.is_closing():
            self._send_timer = self.loop.call_later(SECONDS_TO_SEND, self._end_late_client)
            self.waiting_since = self.loop.time()

    def _end_late_client(self) -> None:
        """Close the connection of a client that was too slow to send; with an error if it has begun a request."""
        self._send_timer = None
        if self.flow.read_paused:  # the server itself has not read what the client sent
            self._watch()
        elif self.conn.their_state is h11.IDLE and not self._is_head_begun:
            self.transport.close()
        else:
            self._refuse(408, f"the request did not arrive within {SECONDS_TO_SEND} seconds")

    def _refuse(self, status: int, message: str) -> None:
        """Send an error, unless an answer has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = json.dumps({"error": message}).encode()
            fixed = {**HEADERS, "Cache-Control": "no-store", "Content-Type": "application/json", "Connection": "close"}
            headers = [*fixed.items(), ("Content-Length", str(len(content)))]
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:  # stops the app, which must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has kept the server waiting longest, or this one if no other is waited for."""
        others = cast("set[TimeLimitedProtocol]", self.connections) - {self}
        waiting = [one for one in others if one.waiting_since is not None]
        longest = min(waiting, key=lambda one: one.waiting_since or 0.0, default=self)
        self.connections.discard(longest)
        longest.transport.abort()
