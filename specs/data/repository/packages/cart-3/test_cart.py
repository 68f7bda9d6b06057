import unittest

from cart import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(split(100, 3), [34, 33, 33])
