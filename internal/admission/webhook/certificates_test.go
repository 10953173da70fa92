// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/x509"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAPIServersAlwaysTrustTheWebhook renews the certificates, if due, at steps of random lengths
// over years, and occasionally parses them from the Secret. It verifies that an API server trusts
// the current serving certificate, whether it has the current CA bundle or a bundle that was
// current up to one settling time ago.
func TestAPIServersAlwaysTrustTheWebhook(t *testing.T) {
	names := []string{"berth-webhook.berth-system.svc", "192.0.2.1"}
	rapid.Check(t, func(t *rapid.T) {
		v := validity{serving: rapid.SampledFrom([]time.Duration{shortestLifetime, time.Hour, 90 * 24 * time.Hour}).Draw(t, "lifetime")}
		now := time.Unix(1_800_000_000, 0)
		type told struct {
			at     time.Time
			bundle string
		}
		var history []told
		var certs certificates
		for step := range 90 {
			next, changed, err := certs.renewIfDue(names, v, now)
			if err != nil {
				t.Fatal(err)
			}
			if changed {
				if again, more, err := next.renewIfDue(names, v, now); err != nil || more || again.serving != next.serving {
					t.Fatalf("a second look at the same time changes something: %v", err)
				}
			}
			if !changed && string(next.caBundle()) != string(certs.caBundle()) {
				t.Fatal("another bundle, but not changed")
			}
			certs = next
			history = append(history, told{now, string(certs.caBundle())})
			// An API server that receives nothing for longer than the settling time has a broken
			// watch.
			history = slices.DeleteFunc(history, func(h told) bool { return now.Sub(h.at) > v.settlingTime() })
			checked := map[string]bool{}
			for _, h := range history {
				if !checked[h.bundle] && (changed || step%8 == 0) {
					trusts(t, h.bundle, certs.serving.cert, names, now)
				}
				checked[h.bundle] = true
			}
			if rapid.IntRange(0, 7).Draw(t, "restart") == 7 {
				certs = stored(t, certs)
			}
			now = now.Add(v.serving / rapid.SampledFrom([]time.Duration{3, 4, 6, 11, 30}).Draw(t, "ahead"))
		}
	})
}

func trusts(t *rapid.T, bundle string, cert *x509.Certificate, names []string, now time.Time) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(bundle))
	for _, name := range names {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
			t.Fatalf("%s at %v: %v", name, now, err)
		}
	}
}

func stored(t *rapid.T, certs certificates) certificates {
	data, err := certs.secretData()
	if err != nil {
		t.Fatal(err)
	}
	read, err := parseCertificates(data)
	if err != nil {
		t.Fatal(err)
	}
	if string(read.caBundle()) != string(certs.caBundle()) || !read.serving.cert.Equal(certs.serving.cert) {
		t.Fatal("read other certificates than were written")
	}
	return read
}

func TestOtherNamesNeedAnotherCertificate(t *testing.T) {
	v, now := validity{time.Hour}, time.Now()
	certs, _, err := certificates{}.renewIfDue([]string{"a.b.svc"}, v, now)
	if err != nil {
		t.Fatal(err)
	}
	next, changed, err := certs.renewIfDue([]string{"a.b.svc", "127.0.0.1"}, v, now)
	if err != nil || !changed || next.serving.cert.VerifyHostname("127.0.0.1") != nil {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if string(next.caBundle()) != string(certs.caBundle()) {
		t.Error("the authority is another one, too")
	}
}

func TestBrokenSecretsAreErrors(t *testing.T) {
	good, _, err := certificates{}.renewIfDue([]string{"a"}, validity{time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, _, _ := certificates{}.renewIfDue([]string{"a"}, validity{time.Hour}, time.Now())
	for _, key := range []string{authoritiesKey, authorityKeysKey, servingKey, servingPrivateKey} {
		data, _ := good.secretData()
		foreign, _ := other.secretData()
		for _, value := range [][]byte{nil, []byte("x"), foreign[key]} {
			data[key] = value
			if _, err := parseCertificates(data); err == nil {
				t.Errorf("%s: %q is taken", key, value)
			}
		}
	}
}

// TestReplicasWithDifferentNamesShareACertificate verifies that replicas with different names renew
// the certificate once each, and that a name without a replica is dropped when the certificate is
// due.
func TestReplicasWithDifferentNamesShareACertificate(t *testing.T) {
	v, now := validity{serving: 90 * 24 * time.Hour}, time.Unix(1_800_000_000, 0)
	replicas := [][]string{{"s.n.svc", "192.0.2.1"}, {"s.n.svc", "192.0.2.2"}, {"s.n.svc", "b.example.com"}}
	var certs certificates
	renewals := 0
	look := func(names []string) {
		next, changed, err := certs.renewIfDue(names, v, now)
		if err != nil {
			t.Fatal(err)
		}
		if certs = next; changed {
			renewals++
		}
	}
	for range 10 {
		for _, names := range replicas {
			look(names)
		}
	}
	if renewals != len(replicas) {
		t.Errorf("%d renewals by %d replicas", renewals, len(replicas))
	}
	for now = now.Add(v.serving * 3 / 4); renewals < 100 && len(replicas) > 1; replicas = replicas[:1] {
		look(replicas[0])
		look(replicas[1])
		look(replicas[0])
	}
	if certs.serving.cert.VerifyHostname("192.0.2.2") != nil || certs.serving.cert.VerifyHostname("b.example.com") == nil {
		t.Errorf("served after the renewal: %v, %v", certs.serving.cert.DNSNames, certs.serving.cert.IPAddresses)
	}
	for i := range 1000 {
		look([]string{"s.n.svc", fmt.Sprintf("%d.example.com", i)})
	}
	if n := len(certs.serving.cert.DNSNames); n > mostNames {
		t.Errorf("%d names", n)
	}
}
