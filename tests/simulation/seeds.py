"""Seeds of runs in which a sentence of the contract broke once, by mistakes of the product that are mended."""

FAILED_ONCE = {
    "classic": (22, 57, 83, 92, 105, 161, 249, 412, 587, 703),
    "consumer": (9, 14, 60, 80, 97, 135, 331, 410, 448),
}
