import unittest

from ledger import cents, total


class TestLedger(unittest.TestCase):
    def test_whole(self):
        self.assertEqual(cents("3"), 300)

    def test_total(self):
        self.assertEqual(total(["1.25", "2.75"]), 400)


if __name__ == "__main__":
    unittest.main()
