package docs

import (
	"path/filepath"
	"testing"
)

var root = filepath.Join("..", "..")

func pages(t *testing.T) []*Page {
	t.Helper()
	all, err := Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

func TestAPageIsTakenApart(t *testing.T) {
	p := Read("p.md", "# A\n\n```yaml\na: 1\n\nb: 2\n```\n\n    $ ls\n    x\n\nend `x`\n- item\n\n  ````text more\n  ```\n  ````\n")
	want := []Block{
		{Language: "yaml", Line: 4, Lines: []string{"a: 1", "", "b: 2"}},
		{Line: 9, Lines: []string{"$ ls", "x"}},
		{Language: "text", Line: 16, Lines: []string{"  ```"}},
	}
	if len(p.Blocks) != len(want) {
		t.Fatalf("%d blocks: %+v", len(p.Blocks), p.Blocks)
	}
	for i, block := range p.Blocks {
		if block.Language != want[i].Language || block.Line != want[i].Line || len(block.Lines) != len(want[i].Lines) || block.Lines[0] != want[i].Lines[0] {
			t.Errorf("block %d is %+v, want %+v", i, block, want[i])
		}
	}
	if prose := p.Prose(); prose[3] != "" || prose[11] != "end `x`" {
		t.Errorf("prose: %q", prose)
	}
}
