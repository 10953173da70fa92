package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/agent/cgroups"
	"github.com/berth-k8s/berth/internal/node/agent/cri"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// Whatever is in a file of a static pod: nothing panics, and a pod that is taken cannot lead out of
// the node's folders by any of its names.
func FuzzStaticPodFile(f *testing.F) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"
	for _, text := range []string{
		"", "{", head, head + "spec: {containers: [{name: c, image: i}]}", "apiVersion: v1\nkind: Pod\nmetadata: {name: ../x, uid: ../../y, namespace: ../z}\nspec: {containers: [{name: c, image: i}]}",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x, uid: ../../y}\nspec: {containers: [{name: c, image: i}]}",
		head + "spec: {containers: [{name: ../c, image: i}]}", head + "spec: {volumes: [{name: ../v, emptyDir: {}}], containers: [{name: c, image: i, volumeMounts: [{name: ../v, mountPath: /x}]}]}",
		head + "spec: {terminationGracePeriodSeconds: -1, containers: [{name: c, image: i, livenessProbe: {periodSeconds: -1, exec: {command: [x]}}, resources: {limits: {cpu: -1, memory: 9e99}}}]}",
		head + "spec: {restartPolicy: Maybe, initContainers: [{name: s, image: i, restartPolicy: Always}], containers: [{name: c, image: i, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]}",
	} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "pod.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		pod, err := readPod(path, "node-1")
		if err != nil {
			if !strings.HasPrefix(err.Error(), path+": ") {
				t.Errorf("refused without its file: %v", err)
			}
			return
		}
		names := []string{pod.Name, pod.Namespace, string(pod.UID)}
		for _, c := range append(append([]v1.Container(nil), pod.Spec.InitContainers...), pod.Spec.Containers...) {
			names = append(names, c.Name)
		}
		for _, v := range pod.Spec.Volumes {
			names = append(names, v.Name)
		}
		for _, name := range names {
			if name == "" || name == "." || !filepath.IsLocal(name) || strings.Contains(name, "/") {
				t.Errorf("the name %q is taken", name)
			}
		}
		admit.Ask(admit.Input{Pod: pod, Node: &v1.Node{}})
		cgroups.ForPod(pod)
		if _, err := (&cri.Runtime{}).SandboxConfig(pod, 0, cri.Place{}); err != nil && pod.Spec.HostUsers == nil {
			t.Error(err)
		}
		in := lifecycle.Input{Pod: pod, Static: true, Memory: &lifecycle.Memory{}, Now: time.Now()}
		in.Seen.Sandboxes = []lifecycle.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.1"}, HostNetwork: pod.Spec.HostNetwork}}
		for _, action := range lifecycle.Decide(in).Actions {
			if action.Kind == lifecycle.StartContainer {
				cgroups.ForContainer(pod, action.Container)
			}
		}
	})
}
