"""Philox4x32-10 (base/philox.h) in Python."""


def philox(seed, call, counter):
    """Returns the four words of a block."""
    low = 0xFFFFFFFF
    c = [counter & low, counter >> 32 & low, call & low, call >> 32 & low]
    k = [seed & low, seed >> 32 & low]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & low, (p0 >> 32) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def uniform_double(seed, call):
    """Returns the first uniform number of a call's stream, with 53 bits."""
    high, low, _, _ = philox(int(seed), int(call), 0)
    return ((high << 32 | low) >> 11) * 2.0**-53
