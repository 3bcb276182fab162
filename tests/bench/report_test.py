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


def test_progress_of_a_run_that_went_on_has_its_own_pace():
  line = report.progress(9, 12, 9.0, 'batch', before=6)
  assert line == 'batch 9/12 [75%]  3.0 s/batch  ETA 0:09'


def test_hours_that_are_left_are_told_as_hours():
  assert report.progress(1, 4, 3000.0, 'batch').endswith('ETA 2:30:00')


def test_a_csv_has_a_column_a_key_and_says_lists_as_json():
  rows = [
      {'row/name': 'plain', 'a': 0.1},
      {'row/name': 'x,"y"', 'b': [1, 2.5], 'a': None, 'c': True},
  ]
  assert report.csv(rows).splitlines() == [
      'row/name,a,b,c',
      'plain,0.1,,',
      '"x,""y""",,"[1, 2.5]",true',
  ]
