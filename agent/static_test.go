package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func readText(t *testing.T, text string) (*v1.Pod, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	pod, err := readPod(path, "Node-1")
	return pod, err
}

func TestStaticPodGetsDefaultsAndANameOfItsNode(t *testing.T) {
	pod, err := readText(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx}]}\n")
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "web-node-1" || pod.Namespace != "default" || pod.UID == "" || pod.Spec.NodeName != "Node-1" {
		t.Errorf("metadata: %+v", pod.ObjectMeta)
	}
	if pod.Spec.RestartPolicy != v1.RestartPolicyAlways || *pod.Spec.TerminationGracePeriodSeconds != 30 || pod.Spec.Containers[0].ImagePullPolicy != v1.PullAlways {
		t.Errorf("spec: %+v", pod.Spec)
	}
	if pod.Annotations[annotationConfigSource] != "file" || pod.Annotations[annotationConfigHash] != string(pod.UID) {
		t.Errorf("annotations: %v", pod.Annotations)
	}
	if last := pod.Spec.Tolerations[len(pod.Spec.Tolerations)-1]; last.Operator != v1.TolerationOpExists || last.Effect != v1.TaintEffectNoExecute {
		t.Errorf("tolerations: %v", pod.Spec.Tolerations)
	}
}

func TestFilesThatAreNoStaticPods(t *testing.T) {
	for text, why := range map[string]string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\n":                                                                             "unknown field", // strict: a Service has no place in it
		"apiVersion: v2\nkind: Pod\nmetadata: {name: x}\n":                                                                                 `kind "Pod" of "v2": must be Pod of v1`,
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}\n":                                                                     "metadata.name: must be set",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n":                                                                                 "spec.containers: must not be empty",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {kontainers: []}\n":                                                         `unknown field "kontainers"`,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {serviceAccountName: a, containers: [{name: c}]}\n":                         "static pods may not reference serviceaccounts",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c}], volumes: [{name: v, secret: {secretName: s}}]}\n": "static pods may not reference secrets",
	} {
		if _, err := readText(t, text); err == nil || why != "unknown field" && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestChangedFileIsAnotherPod(t *testing.T) {
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: nginx}]}\n"
	path := filepath.Join(t.TempDir(), "pod.yaml")
	uid := func(text string) string {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		pod, err := readPod(path, "n")
		if err != nil {
			t.Fatal(err)
		}
		return string(pod.UID)
	}
	first, again, other := uid(text), uid(text+"\n# a comment\n"), uid(strings.Replace(text, "nginx", "nginx:2", 1))
	if first != again || first == other {
		t.Errorf("UIDs: %s, %s, %s", first, again, other)
	}
}
