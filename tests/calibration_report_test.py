from speculative import calibration
from speculative import calibration_report


def test_the_tables_show_the_numbers():
  text = calibration_report.render(calibration.account())
  for cell in [
      '6.58',
      '7.13',
      '46.7 us',
      '-37 %',
      '0.711',
      '0.851',
      '42.1 us',
      '0.73 ms',
      '6.30',
      '4.38',
  ]:
    assert cell in text
  # One table after another, each with its rule.
  assert text.count('\n|-') == 3
  # It is not the fit of a plan, and says so.
  assert 'no cache' in text.splitlines()[0]
