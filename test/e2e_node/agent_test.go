// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2enode

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"

	"github.com/berth-k8s/berth/internal/containerd"
)

// TestAgentJoins verifies that berth agent joins a cluster as configured by its flags and its
// configuration file, runs a pod, and renews an expiring certificate.
func TestAgentJoins(t *testing.T) {
	t.Parallel()
	c := start(t)
	dir, err := os.MkdirTemp("", "berth-containerd-") // socket paths have 107 characters at most
	if err != nil {
		t.Fatal(err)
	}
	own, err := containerd.Run(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	gateway, err := own.Gateway()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(own.Dir, "kubelet")
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\nhealthzPort: 0\naddress: %s\n"+
		"podLogsDir: %s/logs\nevictionHard: {memory.available: 1Mi}\nmakeIPTablesUtilChains: false\n", gateway, root)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	pair := filepath.Join(root, "pki", "kubelet-client-current.pem")
	c.writeExpiring(pair, "joined")

	agent := newProcess(filepath.Join(bin, "berth"), "agent", "--bootstrap-kubeconfig", filepath.Join(c.dir, "node-bootstrap.kubeconfig"),
		"--hostname-override", "joined", "--node-ip", gateway.String(), "--config", config, "--container-runtime-endpoint", own.Endpoint(),
		"--cgroup-root", own.CgroupRoot, "--root-dir", root, "--node-labels", "disk=ssd", "--register-with-taints", "dedicated=lab:NoSchedule",
		"--kube-reserved", "cpu=100m", "--system-reserved", "cpu=100m", "--", "--v=2")
	if err := agent.start(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent:\n%s", agent.out.tail())
		}
		_ = agent.stop() // the error only reports the end by the signal
	})
	var node *v1.Node
	eventually(t, "the node is ready", func() (err error) {
		if node, err = c.client.CoreV1().Nodes().Get(t.Context(), "joined", metav1.GetOptions{}); err == nil && !nodeReady(node) {
			err = errNotYet
		}
		return err
	})
	kept := node.Status.Capacity.Cpu().MilliValue() - node.Status.Allocatable.Cpu().MilliValue()
	if node.Labels["disk"] != "ssd" || kept != 200 || node.Status.Capacity.Pods().Value() != 7 {
		t.Errorf("labels %v, %dm CPU reserved, %d pods", node.Labels, kept, node.Status.Capacity.Pods().Value())
	}
	if len(node.Spec.Taints) == 0 || node.Spec.Taints[0].ToString() != "dedicated=lab:NoSchedule" {
		t.Errorf("taints %v", node.Spec.Taints)
	}
	eventually(t, "the certificate is renewed", func() error {
		now, err := tls.LoadX509KeyPair(pair, pair)
		if err == nil && time.Until(now.Leaf.NotAfter) < time.Hour {
			err = errNotYet
		}
		return err
	})

	c.apply(`{apiVersion: v1, kind: Pod, metadata: {name: there}, spec: {nodeName: joined, terminationGracePeriodSeconds: 1,
  tolerations: [{operator: Exists}], containers: [{name: c, image: "busybox:1", command: [sleep, "10000"]}]}}`)
	c.await("there", "ready", ready)
	c.kubectl("delete", "pod", "there")
	if _, err := c.client.CoreV1().Pods("default").Get(t.Context(), "there", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod after its deletion: %v", err)
	}
}

func nodeReady(node *v1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// writeExpiring writes a node certificate, issued by the cluster's CA, that expires in three
// minutes.
func (c *cluster) writeExpiring(path, node string) {
	c.Helper()
	must := func(err error) {
		c.Helper()
		if err != nil {
			c.Fatal(err)
		}
	}
	authority, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "pki", "ca.crt"), filepath.Join(c.dir, "pki", "ca.key"))
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(3 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	must(err)
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	must(err)
	must(os.MkdirAll(filepath.Dir(path), 0o700))
	must(os.Symlink("kubelet-client-expiring.pem", path)) // the same layout as written by the kubelet
	must(os.WriteFile(filepath.Join(filepath.Dir(path), "kubelet-client-expiring.pem"), append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM...), 0o600))
}
