from speculative.bench import report


def test_columns_are_padded_to_one_width_and_floats_have_two_digits():
  text = report.table(['name', 'x'], [['plain', 1.0], ['a', 12.25], ['b', 7]])
  assert text.splitlines() == [
      '| name  | x     |',
      '|-------|-------|',
      '| plain | 1.00  |',
      '| a     | 12.25 |',
      '| b     | 7     |',
  ]


def test_a_table_without_rows_is_its_header():
  assert report.table(['a'], []).splitlines() == ['| a |', '|---|']


def test_progress_says_the_share_the_pace_and_the_time_left():
  line = report.progress(3, 12, 90.0, 'batch')
  assert line == 'batch 3/12 [25%]  30.0 s/batch  ETA 4:30'


def test_progress_at_the_start_and_at_the_end_divides_by_nothing():
  assert report.progress(0, 2, 0.0, 'batch').endswith('ETA 0:00')
  assert 'ETA 0:00' in report.progress(2, 2, 7.0, 'batch')
