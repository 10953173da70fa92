// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/up/kubelet"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// selfHosted runs Berth as in other clusters: pods on this machine, from an image and the manifests
// of deploy/, instead of processes next to the cluster.
type selfHosted struct {
	file  string // image file in the format of `make image`; empty: not used
	image string // name of the image
}

func (s *selfHosted) wanted() bool { return s.file != "" }

// readImage determines the image's name in a container runtime.
func (s *selfHosted) readImage() (err error) {
	if s.image, err = imageName(s.file); err != nil {
		return fmt.Errorf("--from-image: %w", err)
	}
	return nil
}

// imageName returns the name of the image in an OCI layout in a tar file.
func imageName(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}

	defer file.Close()
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return "", fmt.Errorf("%s: has no index.json: must be an image as `make image` makes it", path)
		case err != nil:
			return "", fmt.Errorf("%s: must be an image as `make image` makes it: %w", path, err)
		case filepath.Clean(header.Name) != "index.json":
			continue
		}
		var index struct {
			Manifests []struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"manifests"`
		}
		if err := json.NewDecoder(archive).Decode(&index); err != nil {
			return "", fmt.Errorf("%s: index.json: %w", path, err)
		}
		for _, manifest := range index.Manifests {
			if name := manifest.Annotations["io.containerd.image.name"]; strings.Contains(filepath.Base(name), ":") {
				return name, nil
			}
		}
		return "", fmt.Errorf("%s: its image has no name and tag: must be one as `make image` makes it", path)
	}
}

// kustomization returns the kustomization to install.
func (s *selfHosted) kustomization(c *Cluster) string {
	at := strings.LastIndexByte(s.image, ':')
	return fmt.Sprintf(`# Berth in place of kube-scheduler and of the controllers of node health and taint eviction, with
# its webhook, on this machine's node.
# Every berth up --from-image rewrites this file.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../kustomize/overlays/replace-default]
components: [../kustomize/components/webhook]
images:
- {name: registry.example.com/berth, newName: %q, newTag: %q}
patches:
- target: {kind: Deployment, name: berth-webhook}
  patch: |
    - {op: add, path: /spec/template/spec/nodeSelector, value: {%s: ""}}
- target: {kind: Deployment, name: berth-scheduler}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --feature-gates=%s}
`, s.image[:at], s.image[at+1:], controlPlaneLabel, c.schedulerGates())
}

// controlPlaneLabel is on the node that runs Berth's pods.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// labelNode gives this machine's node its role. Nodes are not permitted to do this: an attacker in
// control of a node could attract the pods of that role.
func labelNode(ctx context.Context, client kubernetes.Interface) error {
	name, err := kubelet.MachineName()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, controlPlaneLabel)
	if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", name, err)
	}
	return nil
}

// manifestFolder returns the folder of the manifests.
func (s *selfHosted) manifestFolder(c *Cluster) string {
	return filepath.Join(filepath.Dir(c.kubeconfig), "manifests", "here")
}

// installManifests applies the manifests and waits until the pods run. Only Berth would place these
// pods, so stand-in processes run until then and hold the pods' Leases; the pods take over when the
// stand-ins end.
func (s *selfHosted) installManifests(ctx context.Context, c *Cluster, out *print.Progress) error {
	out.Step("berth", "applying the manifests")
	if err := s.writeManifests(c); err != nil {
		return err
	}

	client, err := newClient(c)
	if err != nil {
		return err
	}
	// Remove the pods of an earlier run on this data directory. Their processes ended with it.
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	earlier := metav1.ListOptions{LabelSelector: partOfBerth}
	if err := client.CoreV1().Pods(deploy.Namespace).DeleteCollection(ctx, now, earlier); err != nil {
		return err
	}
	if err := labelNode(ctx, client); err != nil {
		return err
	}

	if said, err := exec.CommandContext(ctx, c.berth, "kubectl", "--kubeconfig", c.kubeconfig, "apply", "-k",
		s.manifestFolder(c)).CombinedOutput(); err != nil {
		return fmt.Errorf("apply the manifests: %w: %s", err, strings.TrimSpace(string(said)))
	}
	if err := freeLeases(ctx, client); err != nil {
		return err
	}

	standing, end := context.WithCancel(ctx)
	defer end()
	waited := make(chan error, 1)
	go func() {
		waited <- s.awaitPods(standing, client, out)
		end()
	}()

	standIns := &supervisor.Supervisor{Dir: filepath.Dir(c.kubeconfig), Progress: func(string, string) {}, Trouble: out.Trouble}
	if err := standIns.Run(standing, s.placeholders(c), func() {}); err != nil {
		return err
	}
	return <-waited
}

// placeholders returns the scheduler and the controllers as processes.
func (s *selfHosted) placeholders(c *Cluster) []supervisor.Part {
	return []supervisor.Part{
		{Name: "controller", Argv: c.newPart("controller", "--leader-elect-resource-namespace", deploy.Namespace,
			"--health-bind-address", "127.0.0.1:0")},
		{Name: "scheduler", Argv: c.newPart("scheduler", "--leader-elect-resource-namespace", metav1.NamespaceSystem,
			"--leader-elect-resource-name", "kube-scheduler",
			"--secure-port", "0", "--health-bind-address", "127.0.0.1:0", "--feature-gates", c.schedulerGates())},
	}
}

// writeManifests writes the manifests to the data directory, where users can inspect them and use
// them for deletion.
func (s *selfHosted) writeManifests(c *Cluster) error {
	here := s.manifestFolder(c)
	all := filepath.Dir(here)
	if err := os.RemoveAll(all); err != nil {
		return err
	}
	if err := os.CopyFS(all, deploy.Manifests()); err != nil {
		return err
	}
	if err := os.Mkdir(here, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(here, "kustomization.yaml"), []byte(s.kustomization(c)), 0o644)
}

func newClient(c *Cluster) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// freeLeases replaces the Leases of an earlier run with unheld ones, for the stand-ins. The
// stand-ins are not permitted to create Leases; see permissionsFor in package controlplane.
func freeLeases(ctx context.Context, client kubernetes.Interface) error {
	for _, at := range []metav1.ObjectMeta{{Namespace: metav1.NamespaceSystem, Name: "kube-scheduler"},
		{Namespace: deploy.Namespace, Name: "berth-controller"}} {
		leases := client.CoordinationV1().Leases(at.Namespace)
		if err := leases.Delete(ctx, at.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: at}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

const partOfBerth = "app.kubernetes.io/part-of=berth"

// podsWithin is generous for a busy machine.
const podsWithin = 3 * time.Minute

// awaitPods returns when all pods of all Deployments are ready.
func (s *selfHosted) awaitPods(ctx context.Context, client kubernetes.Interface, out *print.Progress) error {
	ctx, cancel := context.WithTimeoutCause(ctx, podsWithin, fmt.Errorf("not all of its pods are ready after %v", podsWithin))
	defer cancel()
	said := -1
	for {
		ready, want, waiting, err := s.countPods(ctx, client)
		switch {
		case err == nil && want > 0 && ready >= want:
			return nil
		case err == nil && ready != said:
			out.Step("berth", fmt.Sprintf("%d of %d pods ready", ready, want))
			said = ready
		}

		if !pacing.Sleep(ctx, 200*time.Millisecond) {
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return fmt.Errorf("berth in the cluster: %w: %w", cause, errors.Join(err, errors.New(waiting)))
			}
			return nil
		}
	}
}

// countPods counts ready and wanted pods, and returns the reason that a pod is not ready.
func (s *selfHosted) countPods(ctx context.Context, client kubernetes.Interface) (ready, want int, waiting string, err error) {
	deployments, err := client.AppsV1().Deployments(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: partOfBerth})
	if err != nil {
		return 0, 0, "", err
	}

	for _, d := range deployments.Items {
		want += int(*d.Spec.Replicas)
	}
	pods, err := client.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: partOfBerth})
	if err != nil {
		return 0, want, "", err
	}

	for _, pod := range pods.Items {
		switch {
		case pod.DeletionTimestamp != nil:
		case rules.HasReadyCondition(&pod):
			ready++
		default:
			waiting = pod.Name + " is " + string(pod.Status.Phase)
			for _, status := range pod.Status.ContainerStatuses {
				if w := status.State.Waiting; w != nil {
					waiting = fmt.Sprintf("%s: %s: %s", pod.Name, w.Reason, w.Message)
				}
			}
		}
	}

	return ready, want, waiting, nil
}

// welcomeLine returns the image's line in the welcome.
func (s *selfHosted) welcomeLine(c *Cluster) string {
	if !s.wanted() {
		return ""
	}
	return fmt.Sprintf("  berth       pods in %s, from %s; manifests in %s\n", deploy.Namespace, s.image, s.manifestFolder(c))
}
