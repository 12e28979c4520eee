package hosttest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"path"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// Key is the key of a certificate, by the certificate's folder; nil where there is none.
func (m *Machine) Key(folder string) (key *ecdsa.PrivateKey) {
	m.with(func() { key = m.keys[folder].key })
	return key
}

// LoseKey takes a key away as a person would.
func (m *Machine) LoseKey(folder string) { m.with(func() { delete(m.keys, folder) }) }

// certified is a key with its request, for which a certificate lies beside it.
type certified struct {
	key     *ecdsa.PrivateKey
	request []byte
}

func certificateThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.CertificateSpec](r)
	at := path.Join(s.Folder, "cert.pem")
	waits := func() error {
		if k := m.keys[s.Folder]; k.key == nil || pki.Certifies(s.Certificate, &k.key.PublicKey, s.Names) != nil {
			return appliance.Errorf(appliance.NotReady, "certificate %s: the mesh has not signed its key yet", s.Name)
		}
		return nil
	}
	want := Entry{Owner: "root", Group: "root", Mode: "0644", Content: string(pki.EncodePEM(s.Certificate))}
	return thing{
		observe: func() host.Observation {
			if m.keys[s.Folder].key == nil {
				return host.Observation{}
			}
			if err := waits(); err != nil {
				return host.Observation{Present: true, Differs: err.Error()}
			}
			return seen(true, false, m.paths[at].differs(want))
		},
		before: func() any { return nil },
		do: func() error {
			if m.keys[s.Folder].key == nil {
				delete(m.paths, at)
				key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
				if err != nil {
					return err
				}
				request, err := pki.MakeRequest(key)
				if err != nil {
					return err
				}
				m.keys[s.Folder] = certified{key, request}
				m.ran("openssl req -new -keyout %s/key.pem # %s", s.Folder, s.Owner)
			}
			if err := waits(); err != nil {
				return err
			}
			if have := m.paths[at]; have.differs(want) != "" {
				m.paths[at] = want
				m.ran("openssl x509 -out %s", at)
			}
			return nil
		},
		undo: func(json.RawMessage) (bool, error) {
			if m.keys[s.Folder].key != nil {
				delete(m.keys, s.Folder)
				delete(m.paths, at)
				m.ran("rm -r %s", s.Folder)
			}
			return false, nil
		},
	}, err
}

func (m *Machine) request(_ context.Context, r wire.Resource) (request []byte, err error) {
	s, err := read[wire.CertificateSpec](r)
	m.with(func() { request = bytes.Clone(m.keys[s.Folder].request) })
	return request, err
}
