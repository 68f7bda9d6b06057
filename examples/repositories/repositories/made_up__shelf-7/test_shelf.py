import unittest

import shelf


class TestShelf(unittest.TestCase):
    def test_order(self):
        self.assertEqual(shelf.sorted_titles(["B", "A"]), ["A", "B"])

    def test_shelves(self):
        self.assertEqual(shelf.shelved(["C", "A", "B"], 2), [["A", "B"], ["C"]])
