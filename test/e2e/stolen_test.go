// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubernetes/pkg/kubelet/certificate/bootstrap"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestAStolenNodeIsOneNode verifies the table in docs/reference/stolen-node.md: with the
// certificate of a node of berth up, the API server must permit or refuse each command as the table
// states.
func TestAStolenNodeIsOneNode(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := start(t, filepath.Join(t.TempDir(), "data"), "--nodes", "0", "--ui-port", "-1")
	dir := t.TempDir()
	stolen := filepath.Join(dir, "kubeconfig")
	if err := kubelet.LoadClientCert(t.Context(), stolen, filepath.Join(c.dir, "node-bootstrap.kubeconfig"), dir, "here"); err != nil {
		t.Fatal(err)
	}
	twoNodes(t, c)
	request(t, c, "another")
	lines := stolenTable(t)
	if len(lines) < 30 {
		t.Fatalf("%d lines in the table of docs/reference/stolen-node.md", len(lines))
	}
	for _, line := range lines {
		args := strings.Fields(strings.TrimPrefix(line.command, "kubectl "))
		if strings.Contains(line.command, "--bound-object-name=") {
			args = append(args, "--bound-object-uid="+podUID(t, c, line.command))
		}
		// Poll, because the authorizer observes the references of a new pod after a short delay.
		var r result
		for end := time.Now().Add(10 * time.Second); ; {
			r = execute(t, []string{"KUBECONFIG=" + stolen}, "", filepath.Join(bin, "berth"), append([]string{"kubectl"}, args...)...)
			if r.code == 0 || line.refused || time.Now().After(end) {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		switch {
		case line.refused && (r.code == 0 || !strings.Contains(r.stderr, "orbidden") && !strings.Contains(r.stderr, "is not allowed")):
			t.Errorf("%s: is to be refused; exit code %d: %s%s", line.command, r.code, r.stdout, r.stderr)
		case !line.refused && r.code != 0:
			t.Errorf("%s: is to be allowed; exit code %d: %s", line.command, r.code, r.stderr)
		}
	}
}

type stolenLine struct {
	command string
	refused bool
}

// stolenTable returns the table of the page.
func stolenTable(t *testing.T) (lines []stolenLine) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/stolen-node.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(page), "\n") {
		command, verdict, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !ok || !strings.HasPrefix(command, "kubectl ") {
			continue
		}
		switch verdict {
		case "allowed |":
			lines = append(lines, stolenLine{command, false})
		case "refused |":
			lines = append(lines, stolenLine{command, true})
		default:
			t.Errorf("%s: the table says %q", command, verdict)
		}
	}
	return lines
}

// twoNodes creates the objects named in the table.
func twoNodes(t *testing.T, c *cluster) {
	t.Helper()
	ctx, api := t.Context(), c.client.CoreV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"here", "there"} {
		named := metav1.ObjectMeta{Name: "of-" + node}
		_, err := api.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		must(err)
		_, err = api.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: named}, metav1.CreateOptions{})
		must(err)
		_, err = api.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: named}, metav1.CreateOptions{})
		must(err)
		_, err = api.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: named}, metav1.CreateOptions{})
		must(err)
		_, err = api.Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node}, Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: named.Name,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: named.Name}}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: named.Name}}},
			}}},
		}}, metav1.CreateOptions{})
		must(err)
		_, err = c.client.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		must(err)
	}
}

func podUID(t *testing.T, c *cluster, command string) string {
	t.Helper()
	_, name, _ := strings.Cut(command, "--bound-object-name=")
	pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(pod.UID)
}

// request creates a CertificateSigningRequest that is not approved automatically.
func request(t *testing.T, c *cluster, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "mallory"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
