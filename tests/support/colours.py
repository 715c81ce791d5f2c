"""What colours look like to people who see them differently: distances as CIE76, deficiencies after Machado 2009."""

DEFICIENCIES = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def linear(colour: str) -> list[float]:
    """Red, green and blue of `#rrggbb` as shares of light."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def lab(colour: str, deficiency: str) -> tuple[float, float, float]:
    """L*a*b* of `#rrggbb` as it is seen with one of `DEFICIENCIES`."""
    seen = [
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(colour), strict=True))))
        for row in DEFICIENCIES[deficiency]
    ]
    weights = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) for row in weights]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (value / white for value, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
