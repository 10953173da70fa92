package agent

import (
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// TestPodsAreKnownAgainByAnotherVersion: an agent that was replaced finds the containers of the one
// before by this hash, and static pods by this UID. With others it would replace all of them.
func TestPodsAreKnownAgainByAnotherVersion(t *testing.T) {
	if got := lifecycle.Hash(&v1.Container{Name: "c", Image: "busybox:1.36"}); got != "51b37344" {
		t.Errorf("the hash of the container is %s", got)
	}
	t.Chdir(t.TempDir())
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx, ports: [{containerPort: 80}]}]}\n"
	if err := os.WriteFile("web.yaml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	pod, err := readPod("web.yaml", "node-1")
	if err != nil {
		t.Fatal(err)
	}
	if pod.UID != "1d1f2478ade294b170267c8adfdeeea7" {
		t.Errorf("the UID of the static pod is %s", pod.UID)
	}
}
