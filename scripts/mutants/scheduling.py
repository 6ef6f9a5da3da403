"""Faults of plans, books and requests."""

from mutants.mutation import Mutation, faults

PLANS = "scheduler/test_scheduler_plans.py"
UPDATES = "scheduler/test_scheduler_updates.py"
BOOKS = "scheduler/test_memory_books.py"

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "books",
        (
            "a finished request keeps its pages",
            "scheduler/memory.py",
            "            heapq.heappush(self._free_pages, page)\n",
            "            pass\n",
            (BOOKS,),
        ),
        (
            "a request is admitted without pages",
            "scheduler/memory.py",
            "if not self._free_slots or self.pages_reserved + pages > self.pages:",
            "if not self._free_slots:",
            (f"{PLANS}::test_failed_admission_takes_nothing",),
        ),
        (
            "a failed admission keeps the slot",
            "scheduler/memory.py",
            "        if not self._free_slots or self.pages_reserved + pages > self.pages:\n"
            "            return None\n"
            "        slot = heapq.heappop(self._free_slots)\n",
            "        if not self._free_slots:\n"
            "            return None\n"
            "        slot = heapq.heappop(self._free_slots)\n"
            "        if self.pages_reserved + pages > self.pages:\n"
            "            return None\n",
            (f"{BOOKS}::test_a_failed_reservation_takes_nothing",),
        ),
        (
            "promised pages are promised again",
            "scheduler/memory.py",
            "        self._promised += pages\n",
            "",
            (f"{BOOKS}::test_promised_pages_are_not_promised_again",),
        ),
    ),
    *faults(
        "plan",
        (
            "decode rows are not counted against the budget",
            "scheduler/scheduler.py",
            "self.limits.max_num_batched_tokens - len(decoding)",
            "self.limits.max_num_batched_tokens",
            (f"{PLANS}::test_decode_rows_come_first_then_the_oldest_prompt",),
        ),
        (
            "a chunk goes over the budget",
            "scheduler/scheduler.py",
            "min(budget, len(record.prompt) - record.computed_rows)",
            "len(record.prompt) - record.computed_rows",
            (f"{PLANS}::test_chunks_are_labelled_by_the_next_chunks_first_row",),
        ),
        (
            "a prompt chunk of one row is called a decode",
            "scheduler/scheduler.py",
            "    if decoding == spans:\n",
            "    if decoding == spans or spans == 1:\n",
            (f"{PLANS}::test_one_row_prompt_chunk_is_no_decode",),
        ),
        (
            "a chunk is labelled by its own first row",
            "scheduler/record.py",
            "next_row=self.prompt[end]",
            "next_row=self.prompt[self.computed_rows]",
            (f"{PLANS}::test_chunks_are_labelled_by_the_next_chunks_first_row",),
        ),
        (
            "the first request that waits is admitted, whatever its priority",
            "scheduler/scheduler.py",
            "min(self._waiting.values(), key=lambda record: record.request.priority)",
            "next(iter(self._waiting.values()))",
            (f"{PLANS}::test_urgent_requests_are_admitted_first",),
        ),
    ),
    *faults(
        "request",
        (
            "an abort leaves the slot taken",
            "scheduler/scheduler.py",
            "        return self._end(request_id, FinishReason.ABORT, None)\n",
            "        record = self._running.pop(request_id, None)\n"
            "        return record and record.outcome(FinishReason.ABORT, None)\n",
            (f"{UPDATES}::test_abort_between_steps_releases_in_the_next_plan",),
        ),
        (
            "a step under way gives its frame to a request that is over",
            "scheduler/scheduler.py",
            "            if record.over:\n                continue\n",
            "",
            (f"{UPDATES}::test_abort_while_a_step_is_under_way_drops_its_frame",),
        ),
        (
            "the end frame is emitted",
            "scheduler/scheduler.py",
            "            return RequestUpdate(request_id, None, self._finish(",
            "            return RequestUpdate(request_id, frame, self._finish(",
            (f"{UPDATES}::test_end_frame_stops_and_is_not_emitted",),
        ),
        (
            "max_frames is passed by one",
            "scheduler/scheduler.py",
            "if len(record.frames) == record.request.max_frames:",
            "if len(record.frames) == record.request.max_frames + 1:",
            (f"{UPDATES}::test_max_frames_is_length_and_its_last_frame_is_emitted",),
        ),
        (
            "two requests of one id share what belongs to one",
            "engine/engine.py",
            "            key = str(next(self._numbers))\n",
            "            key = request.id\n",
            ("engine/test_speech_engine.py::test_an_id_may_be_used_again_at_once",),
        ),
        (
            "every request speaks with the first reference that was encoded",
            "engine/admission.py",
            "hashlib.sha256(np.ascontiguousarray(samples, dtype=np.float32).tobytes()).digest()",
            "hashlib.sha256().digest()",
            (
                "engine/test_speech_engine.py::"
                "test_references_are_encoded_once_and_conditioning_is_theirs_alone",
            ),
        ),
    ),
)
