"""math_equal over notations: each pair in both directions, by a truth that was fixed before."""

import pytest

from rlenv.errors import RewardError
from rlenv.testing.rewards import measure, reward_context

pytest.importorskip("math_verify", reason="the extra `math` is not installed")

EQUAL = r"""
\sin 30^\circ | 1/2
\sin(30°) | \frac{1}{2}
sin(30°) | 0.5
\sin\left(30^\circ\right) | \frac12
\sin 60^{\circ} | \frac{\sqrt{3}}{2}
\cos(60^\circ) | 0.5
\cos 0^\circ | 1
\cos 180^\circ | -1
\cos{90^\circ} | 0
\tan 45^\circ | 1
\tan 60^\circ | \sqrt{3}
\cot 45^\circ | 1
\sec 60^\circ | 2
\csc 30 degrees | 2
\sin^2 45^\circ | 1/2
\sin^{2} 60^\circ | 3/4
2\sin 30^\circ | 1
\sin 22.5^\circ | \sin(\frac{\pi}{8})
\cos 30^\circ | \sin 60^\circ
\sin 20^\circ | \cos 70^\circ
\sin 90 | \sin 90
30^\circ | 30
45° | 45^\circ
101_2 | 5
101_{2} | 5
(101)_2 | 5
(101)_{2} | 101_2
12_3 | 5
42_8 | 34
77_{8} | 63
FF_{16} | 255
(1A)_{16} | 26
1000_2 | 8
10_{10} | 10
21_5 | 11
101_2 + 11_2 | 8
1 000 | 1000
-12 345.5 | -12345.5
1 000 000 | 1000000
2ix | 2xi
x_1 | x_1
\log_2 8 | 3
\log_{10} 100 | 2
i^2 | -1
i^3 | -i
i^4 | 1
\frac{1}{i} | -i
e^{i\pi} | -1
e^{\pi i} | -1
e^{2\pi i} | 1
e^{i\pi/2} | i
(1+i)^2 | 2i
(1-i)^2 | -2i
(1+i)(1-i) | 2
(2+i)(2-i) | 5
3+4i | 4i+3
\frac{1+i}{1-i} | i
\frac{2}{1+i} | 1-i
|2+i| | \sqrt{5}
|3+4i| | 5
|3-4i| | 5
\sqrt{-4} | 2i
\sqrt{-1} | i
1 + 2i, 1 - 2i | 1-2i, 1+2i
1 \pm 2i | 1+2i, 1-2i
\{i^2, i\} | \{-1, i\}
x+i | i+x
0.\overline{3} | 1/3
0.\overline{6} | \frac{2}{3}
0.1\overline{6} | 1/6
0.\overline{142857} | 1/7
-1.\overline{27} | -14/11
0.\overline{9} | 1
2.\overline{9} | 3
.\overline{5} | 5/9
3.\bar{3} | 10/3
0.58\overline{3} | 7/12
(7) | 7
[7] | [7]
\{7\} | \{7\}
[1,2] | [1, 2]
(1, 2) | (1,2)
\{1,2\} | \{2,1\}
[0,1) | [0, 1)
7 | 7.0
7, | 7
7~\text{cm} | 7
7\, | 7
7^{\text{th}} | 7
5€ | 5
10 percent | 0.1
45° | 45
7² | 49
x⁻² | x^{-2}
2√3 | 2\sqrt{3}
√(x+1) | \sqrt{x+1}
7·8 | 56
7 × 8 | 56
x ≤ 7 | x \le 7
2**3 | 8
\theta = 7 | 7
5+2t | 2t+5
5+2t | 5+2\cdot t
20-9.8t | -9.8t+20
a+2d | a+2 d
2w+2l | 2(l+w)
100,200,300 | 100,200, and 300
6 x 10^-4 | 0.0006
6x10^{-4} | 6\times 10^{-4}
{7 \choose 3} | 35
{n \choose k} | \binom{n}{k}
\log_e 2 | \ln 2
\{x \mid x>-1\} | (-1,\infty)
\left\{x\in\mathbb{R}\,\middle|\,|x|<3\right\} | \{x:|x|<3\}
7+\sqrt{5+2\sqrt6}-\sqrt2-\sqrt3 | 7
P(1+r)^T | (1+r)^TP
3t | 3 t
2\pi t | 2t\pi
\sin t | \sin(t)
5 | 5 m
5 | 5cm
2\pi | 2\pi\text{ m}
3\sqrt{2} | 3\sqrt{2} cm
45^\circ | 45 degrees
45^\circ | 45
5\text{ ft }6\text{ in} | 5 ft 6 in
\$1,250 | 1250
\$1,250 | \$1{,}250
\$1,250 | 1,250 dollars
5.40\text{ dollars} | \$5.40
€20 | 20 euros
25^\circ\text{C} | 25°C
15\text{ m/s} | 15 meters per second
9.8\text{ m/s}^2 | 9.8\,\mathrm{m/s^2}
100\pi\text{ square inches} | 100\pi\text{ in}^2
3\text{ dozen} | 36
30 sec | 30
30 sec | 30\text{ s}
30\text{ sec.} | 30 seconds
\sec^2 x | sec^2 x
5 sq. ft. | 5\text{ ft}^2
5 cm squared | 5\text{ cm}^2
5th | 5
10:45\text{ a.m.} | 10:45 AM
2:5 | 4 : 10
\text{(A)} | A
\text{no solution} | No solution.
\text{12 cm} | 12
\text{1 and 3} | 3, 1
-1, 3 | x=3\text{ or }x=-1
(0,0), (1,1) | (1,1)\text{ and }(0,0)
(1,2) | x=1, y=2
(1,2) | (x,y)=(1,2)
\frac{-1\pm\sqrt{13}}{2} | \frac{-1-\sqrt{13}}{2}, \frac{-1+\sqrt{13}}{2}
0, \pm 2 | \{-2,0,2\}
(-\infty,3] | x\in(-\infty,3]
2k\pi, k\in\mathbb{Z} | 2\pi k, k\in\mathbb{Z}
x\equiv3\pmod{7} | x \equiv 3 \pmod 7
A' | A^{\prime}
f''(x)=2 | f^{\prime\prime}(x)=2
a_{n}=2n-1 | a_n=2n-1
3\mathbf{i}-2\mathbf{j} | -2\mathbf{j}+3\mathbf{i}
(x,y)=(4,7) | (y,x)=(7,4)
(x,y)=(4,7) | y=7, x=4
(4,7) | y=7\text{ and }x=4
(4,7) | (y,x)=(7,4)
p=5,q=2;p=7,q=2 | (5,2),(7,2)
10,000\text{ and }5 | 5, 10000
24, 28, 3,\!200 | 24, 28, 3200
$8$, $4$ or $\frac12$ | 4, 8, 0.5
09:15 | 9:15
\$10 | USD 10
28\% | 28 pct
18 | 18 eggs
1 | 1 apple
\frac34 | \frac{3}{4}\text{ cup}
7 | 7\text{ mg}
3x_2+2x_1 | 2x_1+3x_2
C_1e^{2x}+2C_2e^{-x} | 2C_2e^{-x}+C_1e^{2x}
125\textnormal{ miles} | 125
2sinh(1) | e-e^{-1}
\frac{\sqrt{3}}{3} | \frac{\sqrt{3}}{3} \approx 0.577
\sqrt{2} | 2^{0.5}
\frac{s+1}{10s} | 0.1(1.0s+1)/s
\ln(1.5) | \ln\frac{3}{2}
1-\frac{1}{2^{99}} | \frac{2^{99}-1}{2^{99}}
2-\frac{1}{2^{99}} | \frac{2^{100}-1}{2^{99}}
1-\frac{1}{2022!} | \frac{2022!-1}{2022!}
(2+\sqrt3)^{50}+(2-\sqrt3)^{50} | (7+4\sqrt3)^{25}+(7-4\sqrt3)^{25}
"""

DIFFERENT = r"""
1 00 | 100
2ix | 2x
\sin 60^\circ | \sin 60
\sin 30^\circ | 1
\sin 30^\circ | \sin 30
\tan 45 | 1
\cos 60^\circ | \sin 60^\circ
\cos 90 | 0
\sin^2 45^\circ | \sin 45^\circ
\sin 30^\circ | 30
101_2 | 101_3
42_8 | 42_9
101_2 | 101
10_2 | 10
FF_{16} | 256
11_2 | 11_3
i | 1
i | -i
i^2 | 1
1 + 2i, 1 - 2i | 1-2i, 1+3i
i^3 | i
e^{i\pi} | 1
(1+i)^2 | 2
2-i | 2+i
|2+i| | 3
3+4i | 7
2i | 2
0.\overline{3} | 0.3
0.\overline{3} | 0.333
0.\overline{6} | 0.67
0.1\overline{6} | 0.\overline{16}
0.\overline{12} | 0.12
[7] | 7
\{7\} | 7
[7] | \{7\}
\left[7\right] | 7
\left\{7\right\} | 7
[1,2] | \{1,2\}
5+2t | 7
5+2t | 5+2s
20-9.8t | 10.2
a+2d | a+2
2w+2l | 2w+2
y = 5+2t | 7
-3t | 3
3t | 3s
5x t | 5x
\frac{1}{2}+3t | 3.5
45^\circ | 45 radians
5\text{ ft }6\text{ in} | 5
5h 6m | 5
\$5.40 | €5.40
\$5.40 | 5.40 cents
36\text{ cents} | \$36
5\text{ A} | 5\text{ V}
300\text{ K} | 300^\circ\text{C}
25^\circ\text{C} | 25^\circ\text{F}
9.8\text{ m/s}^2 | 9.8\text{ N}
100\pi\text{ square inches} | 100\pi\text{ inches}
5 m = 5\text{ cm} | 5\text{ cm}
3\text{ dozen} | 3
30 sec | 30 min
7 squared | 7
7 tenths | 7
7 factorial | 7
10:45\text{ a.m.} | 10:45 p.m.
3:30 | 1/10
2024-03-15 | 2006
2024-03-15 | 2024-15-03
5/12/2020 | 10/24/2020
E | e^1
I | \sqrt{-1}
X | x
C | C'
f | f'
f' | f''
f'(x)=2x | f(x)=2x
f'(x)=2x | f''(x)=2x
\frac{dy}{dx}=2x | \frac{dx}{dy}=2x
\angle ABC | \angle ACB
\text{True} | \text{True} False
\text{odd} | \text{odd} even
4 2 | 42
x=2, y=3 | (3,2)
x=2, y=3 | \{2,3\}
[3,\frac{\pi}{2}] | (3,\frac{\pi}{2})
\frac{-1\pm\sqrt{13}}{2} | \frac{-1+\sqrt{13}}{2}
2k\pi, k\in\mathbb{Z} | 2k\pi
7^{T} | 7
P(1+r)^T | P(1+r)
\{x \mid x>-1\} | \{x \mid x<-1\}
\{x \mid x=7\} | 8
6 x 10^-4 | 6x\cdot 10^{-4}
3\mathbf{i}-2\mathbf{j} | 3\mathbf{i}+2\mathbf{j}
\frac{GMm}{r^2} | \frac{GM^2}{r^2}
(x,y)=(4,7) | (y,x)=(4,7)
(4,7) | (y,x)=(4,7)
(4,7) | y=4, x=7
a=1,b=2,c=3 | (a,c,b)=(1,2,3)
a+B | A+b
\frac{h}{2} | \frac{H}{2}
\pi r^2 | \Pi r^2
8 | 7 \approx 8
2516_8 | 1358_8
22_2 | 10110_2
37 | 37_5
7 | 7 maybe
1 | 1 quarter
2x_1 | 2x_2
7 | 7\text{ eight}
7 | 7\text{ degrees below zero}
\log_6(216)=3 | \log_{36}(36)=1
\log(e^2)=2 | \log(e^5)=5
2-\frac{1}{2^{99}} | 2-\frac{1}{2^{98}}
1-\frac{1}{2022!} | 1-\frac{1}{2021!}
\frac{1}{2^{2024}} | -\frac{1}{2^{2024}}
\frac{1}{2^{2024}} | \frac{1}{3^{2024}}
\frac34-\frac{1}{4\cdot3^{100}} | \frac34+\frac{1}{4\cdot3^{100}}
(2+\sqrt3)^{50}+(2-\sqrt3)^{50} | (2+\sqrt3)^{50}
"""


def _pairs(table: str) -> list[tuple[str, str]]:
    found = [tuple(line.rsplit(" | ", 1)) for line in table.strip().splitlines()]
    return [pair for one, other in found for pair in ((one, other), (other, one))]


@pytest.mark.slow
@pytest.mark.parametrize(("value", "table"), [(1.0, EQUAL), (0.0, DIFFERENT)])
def test_a_notation_means_what_it_means(value: float, table: str) -> None:
    wrong = [
        (answer, gold)
        for answer, gold in _pairs(table)
        if measure("math_equal", reward_context(answer=answer, task={"gold": gold}), expect="{{ task.gold }}").value
        != value
    ]
    assert wrong == []


def test_a_letter_right_behind_a_number_is_a_name_in_an_accepted_answer_and_may_be_a_unit_in_another() -> None:
    assert measure("math_equal", reward_context(answer="3m"), expect="3").value == 1
    assert measure("math_equal", reward_context(answer="3"), expect="3m").value == 0
    assert measure("math_equal", reward_context(answer="3"), expect="3 m").value == 1
    assert measure("math_equal", reward_context(answer="3 A"), expect=r"3\text{ A}").value == 1
    assert measure("math_equal", reward_context(answer=r"2\pi hr"), expect=r"2\pi r h").value == 1, "no hours"
    assert measure("math_equal", reward_context(answer="1,2"), expect=r"1\text{ or }2").value == 1, "no unit"


def test_an_answer_is_a_mixed_number_or_a_list_and_its_rounding_is_one() -> None:
    golds = {"2 and 1/2": [r"\frac{5}{2}", r"2, \frac{1}{2}"], r"\sqrt{2}\approx 1.41": [r"\sqrt{2}"]}
    wrong = {r"7\approx 8": ["7", "8"], r"\sqrt{2}\approx 1.7": [r"\sqrt{2}"], r"x\approx 7": ["7"]}
    for value, pairs in ((1, golds), (0, wrong)):
        for answer, of in pairs.items():
            for gold in of:
                assert measure("math_equal", reward_context(answer=answer), expect=gold).value == value, (answer, gold)


READ_IN_PART = r"""
7|8 7||8 7\\8 7\8 7?8 7@8 7#8 7&8 7`8 7^ 7_ 7{8 7}8 7) 7] 7> 7| 7/ 7* 7+ 7- 7>8 7!=8 7... 7\cdot 7\pm 7\ge 7\neq 7\not
7\%8 7\color{red}8 7\cancel{8} 7\hspace{1cm}8 7\tag{8} 7\text{8} 7\mathbf{8} 7\in{A} 8\fbox{7} \fbox{7}8 \fbox{7},8
\not=7 \ne=7 \ge=7 \lnot=7 \sim=7 \pm=7 \log=7 !=7 \ne{7} \not{7} \neg{7} \lnot{7} \ge{7} x\equiv7\pmod{9}
7,7 7;7 7,7,7 {7,7} \{7,7\} [7,7] 7,7.0 x=7,7 x=7,x=7
\pi,\pi \{\pi;\pi\} [\pi,\pi] x=\pi,\pi
\(7\)\(8\) 8\(7\) \[8\]\[7\] \begin{equation}7\end{equation}8
"""


@pytest.mark.parametrize("answer", ["1;2", "1,2", "(1,2)"])
def test_a_list_of_several_is_the_point_that_it_names(answer: str) -> None:
    assert measure("math_equal", reward_context(answer=answer), expect="(1,2)").value == 1


def test_what_is_read_in_part_is_not_that_part() -> None:
    texts = [*READ_IN_PART.split(), "8\n\\(7\\)", "\\[7\\]\n8", "7 or 8", "7 or so", "0,001,500"]
    expect = ["7", "1500", "0.001", r"\pi"]
    assert [text for text in texts if measure("math_equal", reward_context(answer=text), expect=expect).value] == []


SENTENCES = [
    "The answer is 5",
    r"The total is \frac{1}{2} of the cake",
    "Natalia sold 48/2 = 24 clips in May. #### 72",
    "Half of them went home, and the rest of the class, all but one, stayed until the evening came",
]


@pytest.mark.parametrize("gold", [r"1, 2, \dots, n", "0,001,500", "7|8", *SENTENCES])
def test_a_gold_value_that_can_be_read_in_part_alone_is_refused(gold: str) -> None:
    with pytest.raises(RewardError, match="cannot be read"):
        measure("math_equal", reward_context(answer="2"), expect=gold)


@pytest.mark.parametrize("gold", [r"x \approx 1.3098", r"$x\approx 1.3098$"])
def test_a_gold_given_back_as_it_stands_is_right(gold: str) -> None:
    for answer in (gold, gold.replace(" ", "")):
        assert measure("math_equal", reward_context(answer=answer), expect=gold).value == 1.0


@pytest.mark.parametrize("answer", [r"\sin(100!)", "(1+i)^i", r"\tan(10^{500})", r"\exp(\exp(\exp(\exp(10))))"])
def test_what_so_many_digits_do_not_decide_is_no_number(answer: str) -> None:
    for gold in ("7", r"\sqrt{2}", "12.5", "3-4i", "x^2+1", r"\{1,2\}", r"(-\infty,1)"):
        assert measure("math_equal", reward_context(answer=answer), expect=gold).value == 0.0
    context = reward_context(answer=f"x^2+{answer}")
    assert measure("math_equal", context, expect="x^2+1").value == 0.0


def test_a_constant_of_integration_may_be_a_small_letter() -> None:
    for answer, value in (("e^x + c", 1.0), ("e^x + C", 1.0), ("E^x + a", 0.0)):
        assert measure("math_equal", reward_context(answer=answer), expect="e^x + C").value == value


@pytest.mark.parametrize("name", ["x_1", r"\theta", "AB", r"\text{Area}", r"\angle A", "f(2)"])
def test_of_a_name_and_the_number_that_it_is_near_the_number_is_asked_for(name: str) -> None:
    for answer, value in ((name, 0.0), ("0.5", 1.0)):
        assert measure("math_equal", reward_context(answer=answer), expect=rf"{name} \approx 0.5").value == value


@pytest.mark.parametrize("answer", [r"\approx 7", "≈7", r"\sim 7", "~7"])
def test_what_is_said_to_be_near_is_not_the_number(answer: str) -> None:
    context = reward_context(answer=answer, task={"gold": "7", "near": r"\approx 7"})
    assert measure("math_equal", context, expect="{{ task.gold }}").value == 0.0
    assert measure("math_equal", reward_context(answer="7 miles/s"), expect=r"$\approx 7$ miles/s").value == 1.0
    # A gold value may say so: the number itself is what is asked for.
    assert measure("math_equal", reward_context(answer="7", task={"gold": answer}), expect="{{ task.gold }}").value == 1
