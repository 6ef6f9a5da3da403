"""Faults of preemption, resume and kept prefixes."""

from mutants.mutation import Mutation, faults

PLANS = "scheduler/test_preemption.py"
RESUMED = ("engine/test_preempted_requests.py::test_preempted_after_every_so_many_frames[9-0]",)
KEPT = "scheduler/test_prefix_plans.py"
BOOKS = "scheduler/test_memory_books.py"
ORDER = ("runner/test_plan_order.py",)
TAKEN_BACK = (f"{PLANS}::test_rows_and_pages_of_this_plan_are_taken_back",)
HIT = ("engine/test_voice_prefixes.py::test_hit_and_miss_are_the_same[41]",)

MUTATIONS: tuple[Mutation, ...] = (
    *faults(
        "resume",
        (
            "the made frames are lost on resume",
            "scheduler/record.py",
            "            self.history = np.concatenate([self.history, np.stack(made)])\n",
            "",
            (f"{PLANS}::test_resuming_is_an_admission_with_a_longer_history",),
        ),
        (
            "a resumed request makes its frames again",
            "scheduler/record.py",
            "        made = self.frames[len(self.history) - len(self.prompt) :]\n",
            "        self.frames = []\n        made = self.frames\n",
            (f"{PLANS}::test_resuming_is_an_admission_with_a_longer_history",),
        ),
        (
            "the frame index starts anew",
            "scheduler/record.py",
            "frame_index=len(self.frames)",
            "frame_index=0",
            RESUMED,
        ),
        (
            "the slot's counter starts anew",
            "state/frames.py",
            "        self.counter[slot] = admission.frame_index\n",
            "        self.counter[slot] = 0\n",
            RESUMED,
        ),
        (
            "the window of the prompt alone is restored",
            "scheduler/record.py",
            "window=tuple(self.history[first:, 0].tolist())",
            "window=tuple(self.prompt[-window:, 0].tolist())",
            ("engine/test_preempted_requests.py::test_the_repetition_window_is_restored",),
        ),
        (
            "a resumed request decodes from the last frame of the slot's former owner",
            "scheduler/record.py",
            "        self.started_with = len(self.frames)\n",
            "        self.started_with = len(self.frames)\n"
            "        self.drawn, self.computed_rows = bool(self.frames), len(self.history)\n",
            RESUMED,
        ),
        (
            "a history that has one row left to compute decodes",
            "scheduler/scheduler.py",
            "            self._draft.work.append((record.history_span(count), record))\n",
            "            decodes = count == 1 and record.computed_rows == record.known_rows - 1\n"
            "            span = record.decode_span() if decodes else record.history_span(count)\n"
            "            self._draft.work.append((span, record))\n",
            (f"{PLANS}::test_one_row_of_history_left_is_no_decode_row",),
        ),
    ),
    *faults(
        "preemption",
        (
            "rows of a request stay in the plan that preempts it",
            "scheduler/scheduler.py",
            "        self._draft.release(slot)\n",
            "        self._draft.releases.append(slot)\n",
            TAKEN_BACK,
        ),
        (
            "pages granted in the plan that preempts stay granted",
            "scheduler/draft.py",
            "        self.grants.pop(slot, None)\n",
            "",
            TAKEN_BACK,
        ),
        (
            "the pages of a preempted request are not freed",
            "scheduler/scheduler.py",
            "        slot = record.leave()\n        self._memory.release(slot)\n",
            "        slot = record.leave()\n",
            (f"{PLANS}::test_the_newest_goes_first_and_returns_with_its_history",),
        ),
        (
            "the oldest is preempted first",
            "scheduler/scheduler.py",
            "max(self._running.values(), key=lambda running: running.rank)",
            "min(self._running.values(), key=lambda running: running.rank)",
            (f"{PLANS}::test_the_newest_goes_first_and_returns_with_its_history",),
        ),
        (
            "the preempted stands behind all that wait",
            "scheduler/waiting.py",
            "queue.insert(self._place(queue, record), record)",
            "queue.append(record)",
            (f"{PLANS}::test_the_preempted_stands_before_all_that_never_ran",),
        ),
        (
            "urgent requests are preempted like others",
            "scheduler/record.py",
            "return self.request.priority, self.arrival",
            "return 0, self.arrival",
            (f"{PLANS}::test_the_less_urgent_class_goes_first_whatever_its_age",),
        ),
    ),
    *faults(
        "prefix",
        (
            "a prefix's last page is shared and written",
            "scheduler/memory.py",
            "self.prefixes[prefix][: rows // self.page_size]",
            "self.prefixes[prefix][: self.pages_for(rows)]",
            HIT,
        ),
        (
            "the owner goes on writing in the prefix's last page",
            "scheduler/memory.py",
            "        whole, rest = divmod(rows, self.page_size)\n",
            "        whole, rest = self.pages_for(rows), 0\n",
            (f"{BOOKS}::test_a_prefix_shares_whole_pages_and_copies_the_rest",),
        ),
        (
            "who starts behind a prefix does not get the rows of its last page",
            "runner/runner.py",
            "            state.copy_page(copy.source, copy.target)\n",
            "            pass\n",
            HIT,
        ),
        (
            "a prefix is saved one chunk late",
            "scheduler/scheduler.py",
            "if record.computed_rows == record.prefix_rows and",
            "if record.computed_rows > record.prefix_rows and",
            (f"{KEPT}::test_a_prefix_is_saved_after_its_chunk_and_shared",),
        ),
        (
            "a slot is reset for its next owner before its prefix is saved",
            "runner/runner.py",
            "        for save in plan.prefix_saves:\n"
            "            state.prefixes.save(state.recurrent, save.slot, save.prefix)\n"
            "        self.batch.apply(plan)\n"
            "        for admission in plan.admissions:\n"
            "            state.admit(admission)\n",
            "        self.batch.apply(plan)\n"
            "        for admission in plan.admissions:\n"
            "            state.admit(admission)\n"
            "        for save in plan.prefix_saves:\n"
            "            state.prefixes.save(state.recurrent, save.slot, save.prefix)\n",
            ORDER,
        ),
        (
            "chunks run over the prefix's end",
            "scheduler/scheduler.py",
            "            count = before_end\n",
            "            pass\n",
            (f"{KEPT}::test_a_chunk_ends_at_the_prefix_whatever_the_cut[3]",),
        ),
        (
            "a prefix's pages are freed with its first owner",
            "scheduler/memory.py",
            "        for page in pages:\n"
            "            self._owners[page] += 1\n"
            "        self.prefixes[prefix] = pages\n",
            "        self.prefixes[prefix] = pages\n",
            (f"{KEPT}::test_shared_pages_outlive_their_first_owner",),
        ),
        (
            "a prefix in use is evicted for another",
            "scheduler/prefixes.py",
            "            if not self._memory.shared(kept.number):\n                self._drop",
            "            if kept is not None:\n                self._drop",
            (f"{KEPT}::test_a_prefix_in_use_is_not_evicted_for_another",),
        ),
        (
            "the delta-rule matrix of a prefix is not loaded",
            "state/prefixes.py",
            "            live.matrix[slot].copy_(kept.matrix[prefix])\n",
            "",
            HIT,
        ),
        (
            "a slot is reset after its prefix was loaded",
            "runner/runner.py",
            "            state.prefixes.load(state.recurrent, load.prefix, load.slot)\n",
            "            state.prefixes.load(state.recurrent, load.prefix, load.slot)\n"
            "            for layer in state.recurrent:\n"
            "                layer.reset(load.slot)\n",
            HIT,
        ),
        (
            "voices that differ in their codes alone are one",
            "scheduler/record.py",
            "prompt[:prefix_rows].tobytes()",
            "prompt[:prefix_rows, :1].tobytes()",
            (f"{KEPT}::test_content_is_compared_in_full",),
        ),
        (
            "the prefix kept longest is evicted, however lately it was used",
            "scheduler/prefixes.py",
            "            self._kept.move_to_end(content)\n",
            "",
            (f"{KEPT}::test_the_least_recently_used_makes_room",),
        ),
    ),
)
