"""Every fault that the tests must notice."""

from mutants import codec, draws, graphs, network, preemption, scheduling, slots
from mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *slots.MUTATIONS,
    *draws.MUTATIONS,
    *network.MUTATIONS,
    *scheduling.MUTATIONS,
    *graphs.MUTATIONS,
    *preemption.MUTATIONS,
    *codec.MUTATIONS,
)
