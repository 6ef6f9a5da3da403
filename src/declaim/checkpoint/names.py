"""The network's parameter names, and how each is made from a checkpoint's tensors, both ways.

The network's own names (what model asks for and op tables prepare); [rows, columns]:

    embed                                table   [vocab, hidden]
    codebooks                            table   [Q * V, hidden]
    lm_head                              linear  [candidates, hidden], token ids ascending
    final_norm                           vector  [hidden]
    layers.I.input_norm, .post_norm      vector  [hidden]
    layers.I.attention.qgkv              linear  [2 H D + 2 K D, hidden]: q | gate | k | v
    layers.I.attention.q_norm, .k_norm   vector  [D]
    layers.I.attention.out               linear  [hidden, H D]
    layers.I.delta.qkvz                  linear  [channels + value width, hidden]: q | k | v | z
    layers.I.delta.ba                    linear  [2 * value heads, hidden]: b | a
    layers.I.delta.conv                  conv    [channels, kernel]
    layers.I.delta.a_log, .dt_bias       vector  [value heads]
    layers.I.delta.norm                  vector  [value head width]
    layers.I.delta.out                   linear  [hidden, value width]
    layers.I.experts.router              linear  [experts, hidden]
    layers.I.experts.routed              experts
    layers.I.experts.shared_gate_up      linear  [2 * shared width, hidden]: gate | up
    layers.I.experts.shared_down         linear  [hidden, shared width]
    layers.I.experts.shared_gate         linear  [1, hidden]
    tower.I.table                        table   [V, dim]
    tower.I.enorm, .hnorm, .attention_norm, .ffn_norm, .final_norm   vector  [dim]
    tower.I.eh                           linear  [dim, 2 * dim]
    tower.I.attention.qgkv, .q_norm, .k_norm, .out   as in layers
    tower.I.ffn_gate_up                  linear  [2 * intermediate, dim]: w1 | w3
    tower.I.ffn_down                     linear  [dim, intermediate]
    tower.I.head                         linear  [V, dim]; residual layers only
                                         (I >= shared layers: tower layer shared + j is residual j)

The shared expert's three are absent where the checkpoint has none.
"""
