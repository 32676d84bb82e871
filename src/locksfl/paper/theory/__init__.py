"""The paper's theory as functions: as printed, as it should be, and measured. See docs/theory.md.

bound        Theorem 1 and its corrected form          round_count  how many rounds
optimal      which probabilities are best           composition  what T rounds cost
lemmas       Lemmas 1 to 3, played by the real round (fixed_clients)
problems     losses whose constants are known       check        both bounds against them
estimate     the constants of a run (observe)       picture      theory against practice

Nothing here is released: estimates read every client's data, which only a simulation can.
"""
