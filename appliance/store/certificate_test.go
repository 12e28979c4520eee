package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/certificates"
)

// PKI-3, SAFE-2: of a certificate it is known how many keys were certified in its place within a day: neither names nor renewals count.
func TestCertificateKeys(t *testing.T) {
	s, g := founded(t)
	at := start
	for i, want := range []struct {
		key   string
		after time.Duration
		keys  int
	}{{"a", 0, 0}, {"b", time.Minute, 1}, {"b", time.Minute, 1}, {"c", time.Minute, 2}, {"d", 25 * time.Hour, 0}} {
		at = at.Add(want.after)
		_, err := s.IssueCertificate(t.Context(), by(), certificates.Certificate{Node: g.Hub.ID, Instance: appliance.InstanceName("web"), Name: "web", Names: []string{fmt.Sprintf("n%d.internal", i)},
			Request: []byte(want.key), DER: []byte("c"), Serial: fmt.Sprint(i + 1), IssuedAt: at, EndsAt: at.Add(time.Hour)}, false)
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Certificates(t.Context())
		if err != nil || len(all) != 1 || all[0].Keys != want.keys {
			t.Errorf("after %s: %+v, %v", want.key, all, err)
		}
	}
}
