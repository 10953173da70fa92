// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/component-base/featuregate"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/berth-k8s/berth/controlplane/admissionplugin"
)

func newPKI(t *testing.T) *pki {
	t.Helper()
	p, err := openPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestKubeconfigKeepsWhatUsersAddedToIt(t *testing.T) {
	p, path := newPKI(t), filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.writeAdminKubeconfig(path, "https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[kubeconfigName].Namespace = "mine"
	config.Clusters["other"] = &clientcmdapi.Cluster{Server: "https://other"}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	edited := readFile(t, path)
	if err := p.writeAdminKubeconfig(path, "https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if readFile(t, path) != edited {
		t.Error("it was right and was written again")
	}

	if err := p.writeAdminKubeconfig(path, "https://127.0.0.1:2"); err != nil {
		t.Fatal(err)
	}
	config, err = clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Clusters[kubeconfigName].Server != "https://127.0.0.1:2" {
		t.Errorf("it leads to %s", config.Clusters[kubeconfigName].Server)
	}
	if config.Contexts[kubeconfigName].Namespace != "mine" || config.Clusters["other"] == nil {
		t.Error("the additions are gone")
	}
}

func TestKubeconfigThatDoesNotLeadInIsReplaced(t *testing.T) {
	p, path := newPKI(t), filepath.Join(t.TempDir(), "kubeconfig")
	for name, spoil := range map[string]func() error{
		"of another authority": func() error { return newPKI(t).writeAdminKubeconfig(path, "https://127.0.0.1:1") },
		"unreadable":           func() error { return os.WriteFile(path, []byte("{"), 0o644) },
		"empty":                func() error { return os.WriteFile(path, nil, 0o644) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := p.writeAdminKubeconfig(path, "https://127.0.0.1:1"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		config, err := clientcmd.LoadFromFile(path)
		if err != nil || !p.leadsTo(config, "https://127.0.0.1:1") {
			t.Errorf("%s: does not lead in (%v)", name, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", name, info, err)
		}
	}
}

func TestCertificatesAreForAYearAtMost(t *testing.T) {
	p, path := newPKI(t), filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.issueCertificates("10.96.0.0/12", nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{apiServerCert, proxyClientCert, kubeletClientCert} {
		certificates, err := certutil.ParseCertsPEM([]byte(readFile(t, p.pathOf(name))))
		if err != nil || time.Until(certificates[0].NotAfter) > 366*24*time.Hour {
			t.Errorf("%s: %v, until %v", name, err, certificates[0].NotAfter)
		}
		if slices.Contains(certificates[0].Subject.Organization, mastersGroup) {
			t.Errorf("%s is of %s", name, mastersGroup)
		}
	}
	// An administrator certificate valid for ten years, as issued by earlier versions, is replaced.
	config, err := p.newKubeconfig("https://127.0.0.1:1", adminUser, mastersGroup)
	if err != nil {
		t.Fatal(err)
	}
	key, keyPEM, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	old, err := signCertificate(&x509.Certificate{Subject: pkix.Name{CommonName: adminUser}, NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, p.cluster.certificate, key.Public(), p.cluster.key)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos[kubeconfigName].ClientCertificateData, config.AuthInfos[kubeconfigName].ClientKeyData = old, keyPEM
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	if p.leadsTo(config, "https://127.0.0.1:1") {
		t.Error("a certificate for ten years is kept")
	}
}

func TestAuthoritiesAreMadeOnceAndAllTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	// The directory holds the remains of a crash during creation.
	if err := os.MkdirAll(dir+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir+".new", caCertFile), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openPKI(dir); err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	for _, name := range []string{caCertFile, caKeyFile, frontProxyCertFile, frontProxyKeyFile, tokenKeyFile} {
		made[name] = readFile(t, filepath.Join(dir, name))
	}
	if _, err := openPKI(dir); err != nil {
		t.Fatal(err)
	}
	for name, content := range made {
		if readFile(t, filepath.Join(dir, name)) != content {
			t.Errorf("%s was made again", name)
		}
	}
}

func TestDataOfAnOlderMinorIsTakenOver(t *testing.T) {
	root := t.TempDir()
	old, err := json.Marshal(dataVersion{Format: 1, Kubernetes: "v1.35.9"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "version"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := openDataDir(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if now := readFile(t, filepath.Join(root, "version")); !strings.Contains(now, KubernetesVersion) {
		t.Errorf("version is %s", now)
	}
}

func TestPickedPortIsBelowTheOnesOfOutgoingConnections(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "port")
	l, err := listenAPI(0, memory)
	if err != nil {
		t.Fatal(err)
	}
	picked := portOf(l)
	l.Close()
	if picked < firstPickedPort || picked > lastPickedPort {
		t.Errorf("picked %d", picked)
	}
	again, err := listenAPI(0, memory)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if portOf(again) != picked {
		t.Errorf("picked %d, then %d", picked, portOf(again))
	}
	if err := os.WriteFile(memory, []byte("99999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := listenAPI(0, memory)
	if err != nil {
		t.Fatalf("a broken memory is an error: %v", err)
	}
	other.Close()
}

func TestControllersAreSelectedAsInUpstreamsFlag(t *testing.T) {
	all := len(DefaultControllers())
	for _, c := range []struct {
		list      []string
		want      int
		has, lack string
	}{
		{[]string{"*"}, all, "deployment-controller", "taint-eviction-controller"},
		{[]string{"*", "taint-eviction-controller"}, all + 1, "taint-eviction-controller", "node-lifecycle-controller"},
		{[]string{"-job-controller", "*"}, all - 1, "deployment-controller", "job-controller"},
		{[]string{"job-controller"}, 1, "job-controller", "deployment-controller"},
	} {
		got := selectControllers(c.list)
		if got.Len() != c.want || !got.Has(c.has) || got.Has(c.lack) {
			t.Errorf("%v: %d controllers, %s %t, %s %t", c.list, got.Len(), c.has, got.Has(c.has), c.lack, got.Has(c.lack))
		}
	}
	if err := validateControllers(DefaultControllers()); err != nil {
		t.Error(err)
	}
}

func TestAdmissionPluginStandsWhereTheFirstItReplacesStood(t *testing.T) {
	upstream := slices.Clone(kubeoptions.AllOrderedPlugins)
	admission := kubeoptions.NewAdmissionOptions().GenericAdmission
	admission.EnablePlugins = []string{"ExtendedResourceToleration", "PodTolerationRestriction"}
	installAdmission(admission, []AdmissionPlugin{
		{Name: "Ours", Replaces: []string{"PodTolerationRestriction", "Priority"}},
		{Name: "Another"},
	})
	at := slices.Index(admission.RecommendedPluginOrder, "Ours")
	if got := admission.RecommendedPluginOrder[at+1]; got != "Priority" {
		t.Errorf("Ours stands before %s, want Priority", got)
	}
	at = slices.Index(admission.RecommendedPluginOrder, "Another")
	if got := admission.RecommendedPluginOrder[at+1]; got != "MutatingAdmissionPolicy" {
		t.Errorf("Another stands before %s, want MutatingAdmissionPolicy", got)
	}
	if slices.Contains(admission.EnablePlugins, "PodTolerationRestriction") || !slices.Contains(admission.DisablePlugins, "PodTolerationRestriction") {
		t.Error("PodTolerationRestriction is still on")
	}
	if !slices.Equal(kubeoptions.AllOrderedPlugins, upstream) {
		t.Error("upstream's own list was changed")
	}
	if errs := admission.Validate(); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestBerthsRulesStandWhereUpstreamsDid(t *testing.T) {
	chain := kubeoptions.NewAdmissionOptions().GenericAdmission
	installAdmission(chain, Options{}.admissionPlugins())
	at := func(name string) int {
		t.Helper()
		i := slices.Index(chain.RecommendedPluginOrder, name)
		if i < 0 {
			t.Fatalf("no plugin %s", name)
		}
		return i
	}
	for _, order := range [][]string{
		{"NamespaceLifecycle", "LimitRanger", "NodeRestriction", "BerthNode", "PodSecurity"},
		{"PodNodeSelector", "BerthPod", "BerthPriority", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook", "ResourceQuota"},
	} {
		for i := range order[1:] {
			if at(order[i]) > at(order[i+1]) {
				t.Errorf("%s stands behind %s", order[i], order[i+1])
			}
		}
	}
	for _, name := range append(admissionplugin.ReplacedByPod(), admissionplugin.ReplacedByNode()...) {
		if !slices.Contains(chain.DisablePlugins, name) {
			t.Errorf("upstream's %s is still on", name)
		}
	}
}

func TestLogOfTheRunBeforeIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "controlplane.log")
	for _, line := range []string{"first", "second", "third"} {
		l, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	if now, before := readFile(t, path), readFile(t, path+".1"); now != "third" || before != "second" {
		t.Errorf("log %q, the one before %q", now, before)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
}

func TestBrokenEtcdIsAnErrorNotTheEndOfTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "member", "snap", "db"), []byte(strings.Repeat("nonsense", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	var told error
	e := newEtcd(func(cause error) { told = cause })
	defer e.stop()
	err := e.startMemberIn(dir, zapcore.NewNopCore())
	if err == nil || !strings.Contains(err.Error(), "etcd cannot start") {
		t.Fatalf("start: %v", err)
	}
	if told == nil {
		t.Error("the control plane was not told")
	}
}

func TestEtcdThatWasNeverReadyStartsAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{filepath.Join(dir, "member", "snap", "db"), dir + unfinished} {
		if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		e := newEtcd(func(error) {})
		if err := e.startMemberIn(dir, zapcore.NewNopCore()); err != nil {
			t.Fatal(err)
		}
		e.stop()
		if _, err := os.Stat(dir + unfinished); !os.IsNotExist(err) {
			t.Errorf("still marked as unfinished (%v)", err)
		}
	}
}

func enabled(gate string) bool {
	return utilfeature.DefaultFeatureGate.Enabled(featuregate.Feature(gate))
}

func TestGatesAreAsBeforeWhenTheLastUserIsGone(t *testing.T) {
	const gate = "TaintTolerationComparisonOperators"
	ours := map[string]bool{gate: true}
	first, err := claimGates(ours)
	if err != nil {
		t.Fatal(err)
	}
	second, err := claimGates(ours)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimGates(map[string]bool{gate: false}); err == nil {
		t.Error("other gates were accepted beside running ones")
	}
	first()
	first() // a second call must have no effect
	if !enabled(gate) {
		t.Error("the gate is off while somebody uses it")
	}
	second()
	if enabled(gate) {
		t.Error("the gate is still on")
	}
}

func TestWrongOptionsAreFoundBeforeAnythingIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	_, err := launchPlane(context.Background(), Options{DataDir: dir, Controllers: []string{"nobody"}}, os.Stdout)
	if err == nil || !strings.Contains(err.Error(), "unknown controller") {
		t.Errorf("launch: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error("the data directory was made")
	}
}

// TestAnErrorNamesTheDirectoryAsItWasGiven verifies that an error names a relative path as given if
// it cannot be resolved, here because the working directory was removed.
func TestAnErrorNamesTheDirectoryAsItWasGiven(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir("state"); err == nil || !strings.HasPrefix(err.Error(), "data directory state: ") {
		t.Errorf("%v", err)
	}
}
