"""SVG text with one style for light and dark pages."""
import html

# name: (light, dark)
COLORS = {
    'page': ('#ffffff', '#0d1117'),
    'ink': ('#1f2328', '#e6edf3'),
    'faint': ('#59636e', '#9198a1'),
    'line': ('#d1d9e0', '#3d444d'),
    'box': ('#f6f8fa', '#161b22'),
    'blue': ('#0969da', '#4493f8'),
    'green': ('#1a7f37', '#3fb950'),
    'orange': ('#bc4c00', '#db6d28'),
    'purple': ('#8250df', '#ab7df8'),
    'red': ('#cf222e', '#f85149'),
    'teal': ('#0e7490', '#22b8cf'),
    'yellow': ('#bf8700', '#d29922'),
    'gray': ('#afb8c1', '#545d68'),
}


def style():
    """A class `fill-NAME` and a class `line-NAME` for each color, and sizes of text."""
    def rules(index):
        return ''.join(f'.fill-{name}{{fill:{pair[index]}}}.line-{name}{{stroke:{pair[index]}}}'
                       for name, pair in COLORS.items())
    return ('text{font:13px -apple-system,"Segoe UI",Helvetica,Arial,sans-serif}'
            '.small{font-size:12px}.title{font-size:16px;font-weight:600}.bold{font-weight:600}'
            '.inside{fill:#fff;font-weight:600}' + rules(0) +
            '@media (prefers-color-scheme:dark){' + rules(1) + '.inside{fill:#0d1117}}')


class Canvas:
    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def rect(self, x, y, width, height, fill='box', line=None, radius=0, opacity=1.0, tip=None):
        classes = f'fill-{fill}' if fill else ''
        extra = '' if fill else ' fill="none"'
        if line:
            classes += f' line-{line}'
        if radius:
            extra += f' rx="{radius}"'
        if opacity != 1:
            extra += f' opacity="{opacity}"'
        body = f'><title>{html.escape(tip)}</title></rect>' if tip else '/>'
        self.parts.append(f'<rect class="{classes.strip()}" x="{x:.1f}" y="{y:.1f}" '
                          f'width="{width:.1f}" height="{height:.1f}"{extra}{body}')

    def text(self, x, y, words, fill='ink', anchor='start', style=None):
        """`style`: classes instead of the color `fill`."""
        self.parts.append(f'<text class="{style or "fill-" + fill}" x="{x:.1f}" y="{y:.1f}" '
                          f'text-anchor="{anchor}">{html.escape(words)}</text>')

    def path(self, points, line='ink', width=1.5, arrow=False, dashed=False):
        data = 'M' + ' L'.join(f'{x:.1f},{y:.1f}' for x, y in points)
        extra = ' stroke-dasharray="4 3"' if dashed else ''
        if arrow:
            extra += f' marker-end="url(#arrow-{line})"'
        self.parts.append(f'<path class="line-{line}" d="{data}" fill="none" '
                          f'stroke-width="{width}"{extra}/>')

    def svg(self):
        markers = ''.join(
            f'<marker id="arrow-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path class="fill-{name}" '
            f'd="M0,0 L8,4 L0,8 z"/></marker>' for name in ('ink', 'green', 'orange', 'purple'))
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" '
                f'aria-label="{html.escape(self.title)}">\n'
                f'<title>{html.escape(self.title)}</title>\n'
                f'<style>{style()}</style>\n<defs>{markers}</defs>\n'
                f'<rect class="fill-page" width="100%" height="100%" rx="6"/>\n')
        return head + '\n'.join(self.parts) + '\n</svg>\n'
