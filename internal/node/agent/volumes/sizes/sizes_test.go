package sizes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A folder of more files than are read at once is summed up whole, and what has ended before it
// began counts little of it.
func TestMeasureOfManyFiles(t *testing.T) {
	dir := t.TempDir()
	const files = 3*chunk + 5
	for i := range files {
		path := filepath.Join(dir, fmt.Sprint(i%2), fmt.Sprint(i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, inodes, err := Measure(t.Context(), dir); err != nil || inodes != files+3 {
		t.Errorf("%d entries, %v, want %d files and 3 folders", inodes, err, files)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, inodes, err := Measure(ended, dir); err != nil || inodes != 1 {
		t.Errorf("%d entries after the time was over, %v, want the folder alone", inodes, err)
	}
}
