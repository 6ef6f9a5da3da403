"""The requests that wait: new ones at the end, preempted ones back at their place."""

from bisect import bisect_left

from declaim.scheduler.record import RequestRecord


class WaitingRequests:
    """Waiting requests by priority and arrival.

    A preempted request arrived before all that never ran, so that it stands in front of them.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, RequestRecord] = {}
        self._queues: dict[int, list[RequestRecord]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def get(self, request_id: str) -> RequestRecord | None:
        """The waiting request of this id, if there is one."""
        return self._by_id.get(request_id)

    def all(self) -> list[RequestRecord]:
        """Every waiting request, in the order in which they would be admitted."""
        return [record for priority in sorted(self._queues) for record in self._queues[priority]]

    def add(self, record: RequestRecord) -> None:
        """Put a request at its place."""
        self._by_id[record.request.id] = record
        queue = self._queues.setdefault(record.request.priority, [])
        queue.insert(self._place(queue, record), record)

    def remove(self, record: RequestRecord) -> None:
        """Take a waiting request out."""
        del self._by_id[record.request.id]
        queue = self._queues[record.request.priority]
        del queue[self._place(queue, record)]

    def first(self) -> RequestRecord | None:
        """The next request to admit; held ones are passed over."""
        for priority in sorted(self._queues):
            for record in self._queues[priority]:
                if not record.held:
                    return record
        return None

    @staticmethod
    def _place(queue: list[RequestRecord], record: RequestRecord) -> int:
        return bisect_left(queue, record.arrival, key=lambda waiting: waiting.arrival)
