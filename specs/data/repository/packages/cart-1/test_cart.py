import unittest

from cart import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(total([(100, 10)]), 900)
