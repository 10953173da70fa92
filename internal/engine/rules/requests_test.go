package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestRequestCases runs testdata/requests.txt: a pod in, every way of counting
// it out.
func TestRequestCases(t *testing.T) {
	datadriven.RunTest(t, "testdata/requests.txt", func(t *testing.T, d *datadriven.TestData) string {
		var pod v1.Pod
		if err := yaml.UnmarshalStrict([]byte(d.Input), &pod); err != nil {
			t.Fatal(err)
		}
		switch d.Cmd {
		case "requests":
			return fmt.Sprintf("waiting: %s\nplaced: %s\nscore waiting: %s\nscore placed: %s\n",
				amounts(Requests(&pod)), amounts(RequestsPlaced(&pod)),
				amounts(ScoreRequests(&pod)), amounts(ScoreRequestsPlaced(&pod)))
		case "limits":
			return amounts(Limits(&pod))
		case "qos":
			return string(QOS(&pod))
		case "ports":
			var out strings.Builder
			for _, p := range HostPorts(&pod) {
				fmt.Fprintf(&out, "%s:%d/%s ", p.HostIP, p.HostPort, p.Protocol)
			}
			return out.String()
		}
		return "unknown command " + d.Cmd
	})
}

func amounts(list v1.ResourceList) string {
	var words []string
	for name, q := range list {
		words = append(words, fmt.Sprintf("%s=%s", name, q.String()))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestPriorityOfAPodStoredWithoutOne(t *testing.T) {
	if got := Priority(&v1.Pod{}); got != 0 {
		t.Fatalf("got %d, want 0", got)
	}
}
