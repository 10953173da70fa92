package mountinfo

import (
	"slices"
	"testing"
)

func TestPoints(t *testing.T) {
	const table = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /pods/a rw - tmpfs tmpfs rw
31 22 0:26 / /pods/a/with\040space rw shared:1 - tmpfs tmpfs rw
32 22 0:27 / /pods/ab rw - tmpfs tmpfs rw
33 22 0:28 / /pods/a/back\134slash rw - tmpfs tmpfs rw
` + "34 22 254:0 /data/new\u3000folder /pods/a/of\u00a0a\u3000folder rw - ext4 /dev/vda rw\n" + `broken line
`
	want := []string{"/pods/a", "/pods/a/with space", `/pods/a/back\slash`, "/pods/a/of\u00a0a\u3000folder"}
	if got := points(table, "/pods/a"); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func FuzzPoints(f *testing.F) {
	f.Add(`30 22 0:25 / /pods/a\040b rw - tmpfs tmpfs rw`)
	f.Add("\\0 \\ \\777 1 /pods\\0")
	f.Fuzz(func(t *testing.T, table string) {
		for _, point := range points(table, "/pods") {
			if point != "/pods" && point[:6] != "/pods/" {
				t.Errorf("%q is not below /pods", point)
			}
		}
	})
}
