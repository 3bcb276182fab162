"""The fixed texts that make_references.py asks other implementations about."""

# Three prompts of at least 64 tokens in either vocabulary.
PROMPTS = {
    'prose': (
        'The lighthouse keeper counted the ships each evening and wrote their '
        'names in a ledger bound in green cloth. On the last night of autumn '
        'only one came, a small grey boat with no flag, and nobody on its '
        'deck. He rowed out to meet it, because the sea was calm and because '
        'he had never left a line of the ledger empty. In the cabin he found '
        'a lamp still burning, a cup of warm tea, and a letter that began'
    ),
    'code': (
        'import heapq\n\n\ndef shortest_path(graph, source, target):\n'
        '  """Returns the cost of the cheapest path, or None."""\n'
        '  queue, seen = [(0, source)], set()\n'
        '  while queue:\n'
        '    cost, node = heapq.heappop(queue)\n'
        '    if node == target:\n'
        '      return cost\n'
        '    if node in seen:\n'
        '      continue\n'
        '    seen.add(node)\n'
        '    for neighbour, weight in graph[node].items():\n'
    ),
    'chat': (
        '<|im_start|>system\nAnswer in the language of the question.'
        '<|im_end|>\n<|im_start|>user\nWie heißt die Hauptstadt von '
        'Österreich, et combien d’habitants y vivent ? 東京の人口は約1400万人です。'
        ' Ответь коротко. 🙂<|im_end|>\n<|im_start|>assistant\nWien ist die '
        'Hauptstadt, environ deux millions d’habitants'
    ),
}

# Each text is here for the one thing its name says.
TEXTS = {
    'empty': '',
    'one_space': ' ',
    'one_newline': '\n',
    'word': 'hello',
    'leading_space': ' hello',
    'trailing_space': 'hello ',
    'sentence': 'The quick brown fox jumps over the lazy dog.',
    'contractions': (
        "I'm sure they've said we'll " "see what it'd take, don't you?"
    ),
    'contractions_upper': "I'M SURE THEY'VE SAID WE'LL SEE; IT'S DON'T 'Tis",
    'typographic_quotes': '“It’s ‘fine’,” she said—twice… (maybe)',
    'accents_composed': (
        'Où est l’hôtel ? Ça coûte ' '12,50 € à Orléans; naïve Åsa.'
    ),
    'accents_decomposed': (
        'Ou\u0300 est l’ho\u0302tel ? ' 'C\u0327a cou\u0302te; A\u030asa.'
    ),
    'combining_stack': (
        'Z\u0335\u0321\u0308a\u0301\u0323l\u0334g\u0489o ' 'e\u0301\u0301'
    ),
    'combining_first': '\u0301abc \u0308',
    'ligature_and_width': 'ﬁne ﬀ Ａｂｃ１２ ½ ² Ⅷ ℃ ㎏',
    'vietnamese': 'Tiếng Việt có nhiều dấu: ước, ngữ, quyển, nghĩa.',
    'german_turkish': 'Straße GROẞ İstanbul ışık ǅ',
    'cyrillic_greek': 'Съешь ещё этих мягких булок; Ξεσκεπάζω την ψυχοφθόρα',
    'chinese': '我能吞下玻璃而不伤身体。今天是2024年5月17日，星期五！',
    'japanese': '吾輩は猫である。名前はまだ無い。カタカナとひらがなﾊﾝｶｸ',
    'kana_decomposed': 'か\u3099き\u3099は\u309a が',
    'korean': '다람쥐 헌 쳇바퀴에 타고파',
    'korean_decomposed': '\u1112\u1161\u11ab\u1100\u1173\u11af jamo',
    'arabic': 'مرحبا بالعالم، كيف حالك؟ السَّلامُ عَلَيْكُم ١٢٣٤',
    'hebrew': 'שָׁלוֹם עוֹלָם, מה שלומך? 123',
    'hindi_thai': 'नमस्ते दुनिया १२३ สวัสดีชาวโลก ๑๒๓',
    'emoji': '🙂 ok 👍🏽 thanks 🎉🎉',
    'emoji_zwj': '👩‍👩‍👧‍👦 👨🏿‍🚀 🏳️‍🌈 ❤️‍🔥 🇩🇪🇯🇵 1️⃣',
    'math_symbols': '∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ⇒ √2 ≈ 1.41421 × 10⁰',
    'digits': '1 12 123 1234 12345678901234567890',
    'digits_in_words': (
        'abc123def 4ever v2.0.1 ' '3.14159e-10 0x1F 1,000,000 $9.99'
    ),
    'punctuation': '!!! ??? ... -- --- === != <= >= && || ::: #@%^&*()_+~`',
    'urls': 'https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\dir\\x',
    'code_spaces': (
        'def f(x):\n    if x > 0:\n      ' '  return x ** 2\n    return -x\n'
    ),
    'code_tabs': "for (;;) {\n\tif (a[i++] == '\\t') {\n\t\tbreak;\n\t}\n}\n",
    'code_mixed': 'SELECT *\n  FROM t\t WHERE a<>1;-- x\n#define F(x) (x##1)\n',
    'spaces_2': 'a  b',
    'spaces_3': 'a   b',
    'spaces_65': 'a' + ' ' * 65 + 'b',
    'spaces_trailing': 'end        ',
    'spaces_only': ' ' * 33,
    'newlines': 'a\n\nb\n\n\nc\n\n\n\n',
    'newlines_and_spaces': 'a \n b  \n\n  c\n \n \n',
    'crlf': 'line one\r\nline two\r\n\r\n\tline three\rold mac\r\n',
    'tabs': '\t\ta\t\tb \t c\t',
    'unicode_spaces': (
        'a\u00a0b\u2003c\u3000d\u200be' '\u2028f\u0085g\ufeffh\u202fi'
    ),
    'vertical_space': 'a\x0bb\x0cc\x1cd',
    'chat_tokens': '<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n',
    'end_of_text': 'one<|endoftext|>two <|endoftext|> three',
    'special_back_to_back': '<|im_end|><|im_end|>\n\n<|im_start|>',
    'special_in_word': 'foo<|im_end|>bar<|im_start|> baz',
    'special_after_combining': 'e<|im_end|>\u0301',
    'special_broken': '<|im_start| > <|im_end|  <|endoftext <|im_START|>',
    'special_others': '<repo_name>x<file_sep>y<jupyter_code>z <reponame>',
    'special_qwen': '<tool_call>{"a": 1}</tool_call><|fim_prefix|>x<|box_end|>',
    'not_special': '<s> </s> <pad> <unk> [INST] <0x0A> <bos>',
    'mojibake_marks': 'Ġhello Ċ âĢĻ Ã©',
    'control_bytes': '\x00\x01\x02\x07\x1b[0m\x7f\x80\x9f',
    'rare_code_points': (
        '\ufffd\ufffe\uffff\ue000' '\U000f0000\U0010ffff\U0001f9ff'
    ),
    'rare_scripts': '𐎀𐎁 𓀀𓁐 ꙮ ᚠᛇᚻ 𝔘𝔫𝔦 ꦲꦏ',
    'bidi_controls': 'a\u202eb\u202cc\u2067d\u2069e\u200ff',
    'variation_and_tags': (
        'x\ufe0f y\ufe0e ' '\U0001f3f4\U000e0067\U000e0062\U000e007f'
    ),
    'long_word': 'a' * 97 + 'Donaudampfschifffahrtsgesellschaftskapitän',
    'repeated': 'ababababab' * 12,
    'json': '{"k": [1, 2.5, -3e8, null, true], "s": "a\\u00e9\\n\\"q\\""}',
    'latex_markdown': '# Title\n\n* **bold** _it_ `code`\n\n$$\\frac{a}{b}$$\n',
    'mixed': 'Привет, мир! こんにちは 123 naïve\tcode();  🙂\r\n<|im_end|>',
}
