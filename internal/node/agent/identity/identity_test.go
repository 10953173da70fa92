package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
)

// keep writes a certificate of the node with its key, as the certificate manager does.
func keep(t *testing.T, path, node string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: userOf(node), Organization: []string{nodes}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A machine that belonged to another cluster, or had another name, asks again; one whose API server
// is away does not.
func TestACertificateThatIsKeptMustBeThisNodesInThisCluster(t *testing.T) {
	for _, c := range []struct {
		name, node string
		answer     int
		kept       bool
	}{
		{"this node's", "mine", http.StatusCreated, true},
		{"this node's, and the API server has a fault", "mine", http.StatusInternalServerError, true},
		{"of another cluster", "mine", http.StatusUnauthorized, false},
		{"of another name", "other", http.StatusCreated, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.answer)
				_, _ = w.Write([]byte(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`))
			}))
			defer api.Close()
			path := filepath.Join(t.TempDir(), pair+"-current.pem")
			keep(t, path, c.node)
			own := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertFile: path, KeyFile: path}}
			if err := forgetStrange(t.Context(), own, "mine"); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); (err == nil) != c.kept {
				t.Errorf("kept: %v", err)
			}
		})
	}
}
