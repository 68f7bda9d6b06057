import unittest

from cart import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(shipping(5000), 0)
