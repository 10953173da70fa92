package server

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

func TestTheNodesCertificateIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	home, away := net.IPv4(10, 0, 0, 1), net.IPv4(10, 0, 0, 2)
	show := func(addresses ...net.IP) []byte {
		t.Helper()
		newest, err := KeepCertificate(dir, nodeName, addresses)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := newest(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append([]string{nodeName}, texts(addresses)...) {
			if err := shown.Leaf.VerifyHostname(name); err != nil {
				t.Error(err)
			}
		}
		return shown.Leaf.Raw
	}
	first := show(home)
	if again := show(home); !bytes.Equal(first, again) {
		t.Error("another one after a restart")
	}
	if moved := show(away); bytes.Equal(first, moved) {
		t.Error("the same for another address")
	}
	second := show(away)
	if err := os.WriteFile(filepath.Join(dir, keyFile), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if mended := show(away); bytes.Equal(second, mended) {
		t.Error("the same without its key")
	}
	info, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v %v", info.Mode(), err)
	}
}

func texts(addresses []net.IP) (found []string) {
	for _, ip := range addresses {
		found = append(found, ip.String())
	}
	return found
}

func TestTheNodesCertificateIsRenewedBeforeItsEnd(t *testing.T) {
	dir := t.TempDir()
	k := &kept{filepath.Join(dir, certificateFile), filepath.Join(dir, keyFile), nodeName, nil}
	made := func() bool { _, err := os.Stat(k.certFile); return err == nil }
	if err := k.renew(&x509.Certificate{NotAfter: time.Now().Add(2 * renewBefore)}); err != nil || made() {
		t.Errorf("long before its end: made %t, %v", made(), err)
	}
	if err := k.renew(&x509.Certificate{NotAfter: time.Now().Add(time.Hour)}); err != nil || !made() {
		t.Errorf("an hour before its end: made %t, %v", made(), err)
	}
}

func TestAuthoritiesComeFromTheFileTheClusterOrTheKubeconfig(t *testing.T) {
	asPEM := func(a *authority) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	}
	ofFile, ofCluster, ofConfig := newAuthority(t), newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, asPEM(ofFile), 0o600); err != nil {
		t.Fatal(err)
	}
	published := fake.NewClientset(&v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"},
		Data:       map[string]string{"client-ca-file": string(asPEM(ofCluster))},
	})
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: asPEM(ofConfig)}}
	for _, c := range []struct {
		name    string
		options AuthorityOptions
		want    *authority
	}{
		{"a file", AuthorityOptions{File: file, Client: published, Config: config}, ofFile},
		{"the cluster", AuthorityOptions{Client: published, Config: config}, ofCluster},
		{"the kubeconfig", AuthorityOptions{Client: fake.NewClientset(), Config: config}, ofConfig},
		{"none", AuthorityOptions{Client: fake.NewClientset(), Config: &rest.Config{}}, nil},
	} {
		found, err := ClusterAuthorities(c.options)
		if err != nil {
			t.Fatal(err)
		}
		// Run once over: what it reads must not be lost to what it cannot.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		found.Run(ctx)
		options, ok := found.VerifyOptions()
		if c.want == nil {
			if ok {
				t.Errorf("%s: somebody is trusted", c.name)
			}
			continue
		}
		server := c.want.client(t, "kube-apiserver", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
		if _, err := server.Leaf.Verify(options); err == nil {
			t.Errorf("%s: a server's certificate is a client's", c.name)
		}
		for _, a := range []*authority{ofFile, ofCluster, ofConfig} {
			_, err := a.client(t, "kube-apiserver").Leaf.Verify(options)
			if (err == nil) != (a == c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ClusterAuthorities(AuthorityOptions{File: file}); err == nil {
		t.Error("nonsense is no error")
	}
}
