"""Faults of plans, books and requests."""

from mutants.mutation import Mutation, faults

PLANS = "scheduler/test_scheduler_plans.py"
UPDATES = "scheduler/test_scheduler_updates.py"
BOOKS = "scheduler/test_memory_books.py"
SPEECH = "engine/test_speech_engine.py"

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
            "scheduler/scheduler.py",
            "return wanted <= self._memory.free_pages + self._prefixes.evictable_pages(kept)",
            "return True",
            (f"{PLANS}::test_failed_admission_takes_nothing",),
        ),
        (
            "a failed admission keeps the slot",
            "scheduler/scheduler.py",
            "        if kept is None and not self._fits(record, None):\n",
            "        if kept is None and not self._fits(record, None):\n"
            "            self._memory.open()\n",
            (f"{PLANS}::test_failed_admission_takes_nothing",),
        ),
        (
            "pages that running prompts still lack are given to another",
            "scheduler/scheduler.py",
            "            wanted += self._memory.lacks(running.owned_slot, len(running.history))\n",
            "            pass\n",
            (f"{PLANS}::test_admission_leaves_the_watermark_and_what_running_prompts_lack",),
        ),
        (
            "the watermark is not left",
            "scheduler/scheduler.py",
            "            wanted += -(-self.limits.pages // WATERMARK_SHARE)\n",
            "            pass\n",
            (f"{PLANS}::test_admission_leaves_the_watermark_and_what_running_prompts_lack",),
        ),
    ),
    *faults(
        "plan",
        (
            "decode rows are not counted against the budget",
            "scheduler/draft.py",
            "sum(span.count for span, _ in self.work)",
            "sum(span.count for span, _ in self.work if span.rows is not None)",
            (f"{PLANS}::test_decode_rows_come_first_then_the_oldest_prompt",),
        ),
        (
            "a chunk goes over the budget",
            "scheduler/scheduler.py",
            "min(self._budget, self._chunk(record))",
            "self._chunk(record)",
            (f"{PLANS}::test_chunks_are_labelled_by_the_next_chunks_first_row",),
        ),
        (
            "a prompt chunk of one row is called a decode",
            "scheduler/draft.py",
            "sum(span.rows is None for span in spans)",
            "sum(span.count == 1 for span in spans)",
            (f"{PLANS}::test_one_row_prompt_chunk_is_no_decode",),
        ),
        (
            "a chunk is labelled by its own first row",
            "scheduler/record.py",
            "next_row=self.history[end]",
            "next_row=self.history[self.computed_rows]",
            (f"{PLANS}::test_chunks_are_labelled_by_the_next_chunks_first_row",),
        ),
        (
            "requests are admitted by arrival, whatever their priority",
            "scheduler/waiting.py",
            "        for priority in sorted(self._queues):\n",
            "        for priority in self._queues:\n",
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
            "every request has the same internal key",
            "engine/engine.py",
            "            key = str(next(self._numbers))\n",
            '            key = ""\n',
            (f"{SPEECH}::test_survivors_of_aborts_and_failures",),
        ),
        (
            "every request speaks with the first reference that was encoded",
            "engine/admission.py",
            "hashlib.sha256(np.ascontiguousarray(samples, dtype=np.float32).tobytes()).digest()",
            "hashlib.sha256().digest()",
            (f"{SPEECH}::test_references_are_encoded_once_and_conditioning_is_theirs_alone",),
        ),
    ),
)
