package simulate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// The Eviction API fails for a pod that more than one budget covers, whatever these allow. kubectl
// does not try again: it goes on with the other pods, and with the next node.
func TestAPodUnderTwoBudgetsIsNotEvicted(t *testing.T) {
	var text strings.Builder
	text.WriteString(twoNodes)
	for name, node := range map[string]string{"two": "node-1", "one": "node-1", "next": "node-2"} {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec: {nodeName: %s, containers: [{name: c, image: i}]}
`, name, name, node)
	}
	for _, name := range []string{"a", "b"} {
		fmt.Fprintf(&text, "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: %s}\nspec: {minAvailable: 0, selector: {matchLabels: {app: two}}}\n", name)
	}
	s := run(t, text.String(), simulate.Options{For: time.Hour, Scenario: scenario(t, "- {at: 1m, drain: {nodes: [node-1, node-2], force: true}}\n")})
	var told []string
	for _, e := range s.Timeline {
		if strings.Contains(e.Kind, "Drain") {
			told = append(told, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Node, " ", e.Name, " ", e.After)))
		}
	}
	want := []string{
		"PodDrained node-1 one 60s", "DrainBlocked node-1 two 60s", "DrainGaveUp node-1  60s",
		"PodDrained node-2 next 60s", "NodeDrained node-2  60s",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
}
