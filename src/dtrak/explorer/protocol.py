"""HTTP with guests who have to be punctual: no one holds a connection by sending half a request, or by not reading.

uvicorn waits for ever for the rest of a request. Here a request's head has to come within a few seconds, its body has
to go on coming, and an answer has to be taken. When there are too many connections, the one that has let the server
wait longest makes room: whoever sends whole requests is never shut out by those who do not.
"""

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from dtrak.explorer.guard import HEADERS

CONNECTIONS = 512  # at a time
SECONDS_TO_SEND = 5  # for a head, and for each part of a body
PART = 64 << 10  # bytes of a body
SECONDS_TO_TAKE = 5  # for what the system does not hold of an answer
WAITING = (h11.IDLE, h11.SEND_BODY)  # the client's states in which it is the client's turn


class PunctualProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waiting_since: float | None = None  # for the rest of a request, or for the next one
        self._awaited: Any = None  # what the client has to send until `_due`
        self._due: asyncio.TimerHandle | None = None  # when the client is late
        self._arrived = 0  # bytes since then
        self._taken: asyncio.TimerHandle | None = None  # when the client has not taken its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
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
        for timer in (self._due, self._taken):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken = self.loop.call_later(SECONDS_TO_TAKE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taken is not None:
            self._taken.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a request that can be understood")

    @property
    def _is_head_begun(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _watch(self) -> None:
        """Begin to wait for the client, or go on, or stop if it is not the client's turn."""
        state = self.conn.their_state
        awaited = (state, self._is_head_begun)
        goes_on = self._arrived >= PART and self.conn.our_state is not h11.DONE  # what follows an answer is of no use
        if awaited == self._awaited and self._due is not None and not goes_on:
            return
        if self._due is not None:
            self._due.cancel()
        self._awaited, self._arrived, self._due, self.waiting_since = awaited, 0, None, None
        if state in WAITING and not self.transport.is_closing():
            self._due = self.loop.call_later(SECONDS_TO_SEND, self._is_late)
            self.waiting_since = self.loop.time()

    def _is_late(self) -> None:
        self._due = None
        if self.flow.read_paused:  # the server has not taken what has come
            self._watch()
        elif self.conn.their_state is h11.IDLE and not self._is_head_begun:
            self.transport.close()  # nothing was asked
        else:
            self._refuse(408, f"the request has not come within {SECONDS_TO_SEND} seconds")

    def _refuse(self, status: int, message: str) -> None:
        """Answer, unless an answer has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = json.dumps({"error": message}).encode()
            fixed = {**HEADERS, "Cache-Control": "no-store", "Content-Type": "application/json", "Connection": "close"}
            headers = [*fixed.items(), ("Content-Length", str(len(content)))]
            answer = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (answer, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:  # the app must not answer any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has let the server wait longest; this one, if all others are at work."""
        others = cast("set[PunctualProtocol]", self.connections) - {self}
        waiting = [one for one in others if one.waiting_since is not None]
        longest = min(waiting, key=lambda one: one.waiting_since or 0.0, default=self)
        self.connections.discard(longest)
        longest.transport.abort()
