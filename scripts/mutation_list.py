"""Every fault that the tests must notice."""

from mutants import codec, draws, network, scheduling, slots
from mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *slots.MUTATIONS,
    *draws.MUTATIONS,
    *network.MUTATIONS,
    *scheduling.MUTATIONS,
    *codec.MUTATIONS,
)
